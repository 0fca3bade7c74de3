"""A training process that is killed, at whatever moment, leaves the run as if it had never been."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.epochs import record
from tests.support.epochs import train
from tests.support.epochs import weights
from tests.support.policy import save_policy
from training.checkpoint import latest

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

# Waits for its turn, then works until the moment named first and kills itself there.
DOOMED = """
import os, signal, sys
from training.cpu_platform import select_device
select_device("cpu")
import training.checkpoint, training.run_epoch
from training.learner import Learner

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def die_at_the_second(self, batch, real=Learner._optimize, seen=[]):
    seen.append(real(self, batch) if not seen else die())
    return seen[-1]

where, name, instead = {
    "before the rows are read": (training.run_epoch, "_rows", die),
    "between two optimizer steps": (Learner, "_optimize", die_at_the_second),
    "in the middle of the checkpoint": (training.checkpoint, "export", die),
    "before the checkpoint has its name": (training.checkpoint, "_rename", die),
    "before the result is written": (training.run_epoch, "write_result", die),
}[sys.argv[1]]
setattr(where, name, instead)
input()
sys.exit(training.run_epoch.main(sys.argv[2:]))
"""
MOMENTS = {
    "before the rows are read": "epoch-0001",
    "between two optimizer steps": "epoch-0001",
    "in the middle of the checkpoint": "epoch-0001",
    "before the checkpoint has its name": "epoch-0001",
    "before the result is written": "epoch-0002",
}
"""When, and the newest whole checkpoint then."""


def test_killed_at_five_moments_it_ends_with_the_weights_of_an_unbroken_run(tmp_path: Path) -> None:
    base = save_policy(tmp_path / "base")
    first, second = (record(tmp_path, base, epoch, [1.0, 0.0, 0.5, 0.0]) for epoch in (1, 2))
    before = train(tmp_path, first, tmp_path / "broken", None, ppo_epochs=2)
    shutil.copytree(tmp_path / "broken", tmp_path / "unbroken")
    unbroken = train(tmp_path, second, tmp_path / "unbroken", before["checkpoint"], ppo_epochs=2)
    assert weights(before) != weights(unbroken)

    job, result = tmp_path / "job.json", tmp_path / "result.json"
    job.write_text(json.dumps(json.loads(job.read_text()) | {"checkpoint_dir": str(tmp_path / "broken")}))
    result.unlink()
    # All are started at once, because to import veRL takes longer than all the rest.
    waiting = {
        moment: subprocess.Popen(
            [sys.executable, "-c", DOOMED, moment, str(job)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for moment in MOMENTS
    }
    for moment, process in waiting.items():
        _, said = process.communicate(b"\n")
        assert process.returncode == -signal.SIGKILL, (moment, said)
        assert not result.exists(), moment
        whole = latest(tmp_path / "broken")
        assert whole is not None and whole.name == MOMENTS[moment], moment
    again = train(tmp_path, second, tmp_path / "broken", before["checkpoint"], ppo_epochs=2)
    assert weights(again) == weights(unbroken)
