"""O61: resuming at the end of an epoch trains every epoch once, in the order and to the bits of an unbroken run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from tests.support.epochs import record
from tests.support.epochs import train
from tests.support.epochs import weights
from tests.support.policy import save_policy
from training.job import TrainJob
from training.run_epoch import run_epoch

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

STRAIGHT = """
import hashlib, json, sys
from pathlib import Path
from training.cpu_platform import select_device
select_device("cpu")
from proxy_addons import records
from training.advantages import group_advantages
from training.job import TrainJob
from training.learner import Learner
from training.run_epoch import _rows
job = TrainJob.model_validate_json(Path(sys.argv[1]).read_text())
learner = Learner(Path(job.base_model), job.settings)
for epoch in json.loads(sys.argv[2]):
    now = job.model_copy(update=epoch)
    rollouts = records.read(now.rollouts, records.ROLLOUTS)
    rows, _ = _rows(now, rollouts)
    advantages, _ = group_advantages(rollouts, {r.rollout for r in rows})
    learner.update([r for r in rows if r.rollout in advantages], advantages, now.seed, now.epoch)
state = learner.state_dict()
print(hashlib.sha256(b"".join(state[name].numpy().tobytes() for name in sorted(state))).hexdigest())
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_policy(tmp_path / "base")


def test_o61_resumed_at_every_epoch_it_is_the_straight_run(tmp_path: Path, base: Path) -> None:
    epochs = [record(tmp_path, base, n, [1.0, 0.0, 0.5, 0.0]) for n in (1, 2)]
    hashes: list[str] = []
    checkpoints: list[str | None] = [None]
    for recorded in epochs:
        result = train(tmp_path, recorded, tmp_path / "ck", checkpoints[-1])
        hashes.append(weights(result))
        checkpoints.append(result["checkpoint"])
    assert len(set(hashes)) == 2
    straight = subprocess.run(
        [sys.executable, "-c", STRAIGHT, str(tmp_path / "job.json"), json.dumps(epochs)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
    )
    assert straight.stdout.split()[-1] == hashes[1]
    again = train(tmp_path, epochs[1], tmp_path / "ck", checkpoints[1])
    assert weights(again) == hashes[1], "an epoch whose result was lost is redone to the same weights"
    job = json.loads((tmp_path / "job.json").read_text()) | {"resume": checkpoints[2]}
    with pytest.raises(ConfigError, match="already holds epoch 2; job epoch 2 would train twice"):
        run_epoch(TrainJob.model_validate(job))
