"""A trainer that stays gives the weights of one that starts anew for each epoch, bit for bit, and loads once."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Alone:
    """Two recorded epochs, and the weights after each in processes of their own."""

    folder: Path
    settings: dict[str, Any]
    epochs: list[dict[str, Any]]
    weights: list[str]


@pytest.fixture(scope="module", params=[{}, {"lora_rank": 4, "kl_coef": 0.1}], ids=["weights", "adapter"])
def alone(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Alone:
    folder = tmp_path_factory.mktemp("alone")
    base = save_policy(folder / "base")
    epochs = [record(folder, base, epoch, [1.0, 0.0, 0.5, 0.0]) for epoch in (1, 2)]
    first = train(folder, epochs[0], folder / "anew", None, **request.param)
    second = train(folder, epochs[1], folder / "anew", first["checkpoint"], **request.param)
    return Alone(folder, SETTINGS | request.param, epochs, [weights(first), weights(second)])


def job(alone: Alone, folder: Path, epoch: int, resume: str | None) -> dict[str, Any]:
    return alone.epochs[epoch] | {
        "base_model": str(alone.folder / "base"),
        "resume": resume,
        "seed": 7,
        "checkpoint_dir": str(folder / "stays"),
        "result": str(folder / "stays.json"),
        "settings": alone.settings,
    }


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "stays.json").read_text())
    return found


def test_it_loads_once_and_ends_with_the_weights_of_processes_of_their_own(
    alone: Alone, tmp_path: Path, do: Do
) -> None:
    assert do(job(alone, tmp_path, 0, None)) == 0
    first = result(tmp_path)
    assert do(job(alone, tmp_path, 1, first["checkpoint"])) == 0
    second = result(tmp_path)
    assert [weights(first), weights(second)] == alone.weights
    assert len(set(alone.weights)) == 2
    loads = first["seconds"]["load"], second["seconds"]["load"]
    assert loads[1] < 0.1 * loads[0], loads  # nothing was loaded again: not a matter of speed


def test_after_a_job_that_failed_it_goes_on_from_the_checkpoint(alone: Alone, tmp_path: Path, do: Do) -> None:
    assert do(job(alone, tmp_path, 0, None)) == 0
    checkpoint = result(tmp_path)["checkpoint"]
    assert do(job(alone, tmp_path, 0, checkpoint)) == 2
    assert "would train twice" in (tmp_path / "log").read_text()
    assert do(job(alone, tmp_path, 1, checkpoint) | {"checkpoint_dir": "/proc/nowhere"}) == 3
    assert do(job(alone, tmp_path, 1, checkpoint)) == 0
    assert weights(result(tmp_path)) == alone.weights[1]
