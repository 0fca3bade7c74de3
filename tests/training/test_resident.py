"""A trainer that stays gives the weights of one that starts anew for each epoch, bit for bit, and loads once."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import record
from tests.support.epochs import train
from tests.support.epochs import weights
from tests.support.policy import save_policy

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

SETTINGS = {"threads": 1, "device": "cpu", "learning_rate": 1e-2, "weight_decay": 0.1}

Do = Callable[[dict[str, Any]], int]


@pytest.fixture
def do(tmp_path: Path) -> Iterator[Do]:
    """Does a job in the process that stays; its exit code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "training.resident"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "log").open("w"),
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )

    def ask(job: dict[str, Any]) -> int:
        assert process.stdin is not None
        assert process.stdout is not None
        file = tmp_path / "resident.json"
        file.write_text(json.dumps(job))
        print(file, file=process.stdin, flush=True)
        return int(process.stdout.readline())

    yield ask
    process.kill()
    process.communicate()


def job(folder: Path, recorded: dict[str, Any], resume: str | None) -> dict[str, Any]:
    return recorded | {
        "base_model": str(folder / "base"),
        "resume": resume,
        "seed": 7,
        "checkpoint_dir": str(folder / "stays"),
        "result": str(folder / "stays.json"),
        "settings": SETTINGS,
    }


def test_it_loads_once_and_ends_with_the_weights_of_processes_of_their_own(tmp_path: Path, do: Do) -> None:
    base = save_policy(tmp_path / "base")
    epochs = [record(tmp_path, base, epoch, [1.0, 0.0, 0.5, 0.0]) for epoch in (1, 2, 3)]
    wanted, seen, result, before = [], [], None, None
    for recorded in epochs:
        before = train(tmp_path, recorded, tmp_path / "anew", before["checkpoint"] if before else None)
        wanted.append(weights(before))
    for recorded in epochs:
        assert do(job(tmp_path, recorded, result["checkpoint"] if result else None)) == 0
        result = json.loads((tmp_path / "stays.json").read_text())
        seen.append((weights(result), result["seconds"]["load"]))
    assert [found for found, _ in seen] == wanted
    assert len(set(wanted)) == 3
    loads = [seconds for _, seconds in seen]
    assert max(loads[1:]) < 0.1 * loads[0], loads  # nothing is loaded again: not a matter of speed


def test_after_a_job_that_failed_it_goes_on_from_the_checkpoint(tmp_path: Path, do: Do) -> None:
    base = save_policy(tmp_path / "base")
    first, second = (record(tmp_path, base, epoch, [1.0, 0.0, 0.5, 0.0]) for epoch in (1, 2))
    assert do(job(tmp_path, first, None)) == 0
    checkpoint = json.loads((tmp_path / "stays.json").read_text())["checkpoint"]
    again = job(tmp_path, first, checkpoint)
    assert do(again) == 2
    assert "would train twice" in (tmp_path / "log").read_text()
    broken = job(tmp_path, second, checkpoint) | {"checkpoint_dir": "/proc/nowhere"}
    assert do(broken) == 3
    assert do(job(tmp_path, second, checkpoint)) == 0
    found = weights(json.loads((tmp_path / "stays.json").read_text()))
    alone = train(tmp_path, first, tmp_path / "anew", None)
    assert found == weights(train(tmp_path, second, tmp_path / "anew", alone["checkpoint"]))
