"""The run's training process: it stays for the next job, and one that ended is replaced."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from tasks.update import Trainer
from tests.support.epochs import record
from tests.support.epochs import train
from tests.support.policy import save_policy

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]  # torch takes seconds to import


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    found = Trainer(tmp_path / "train.log")
    yield found
    found.stop()


def processes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "training.resident" in child.cmdline()]


async def test_a_refusal_is_told_in_its_own_words_and_the_process_stays(trainer: Trainer, tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text("{}")
    with pytest.raises(ConfigError, match=r"the trainer \(exit 2\): ConfigError: .*base_model: Field required"):
        await trainer.do(job)
    (first,) = processes()
    with pytest.raises(InfrastructureError, match="No such file"):
        await trainer.do(tmp_path / "nothing.json")
    assert processes() == [first]


async def test_one_that_was_killed_is_told_and_replaced(trainer: Trainer, tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text("{}")
    with pytest.raises(ConfigError):
        await trainer.do(job)
    (first,) = processes()
    os.kill(first.pid, signal.SIGSTOP)  # it cannot answer
    asked = asyncio.create_task(trainer.do(job))
    await asyncio.sleep(0.2)
    os.kill(first.pid, signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="the trainer ended"):
        await asked
    with pytest.raises(ConfigError):
        await trainer.do(job)
    assert processes() != [first]


async def test_cancelling_ends_it(trainer: Trainer, tmp_path: Path) -> None:
    asked = asyncio.create_task(trainer.do(tmp_path / "job.json"))
    await asyncio.sleep(0.2)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert processes() == []


async def test_two_processes_share_an_update_and_go_on_from_their_checkpoint(trainer: Trainer, tmp_path: Path) -> None:
    base = save_policy(tmp_path / "base")
    recorded = [record(tmp_path, base, epoch, [1.0, 0.0, 0.5, 0.0]) for epoch in (1, 2)]
    alone: dict[str, Any] | None = None
    shared: dict[str, Any] | None = None
    for number, epoch in enumerate(recorded):
        alone = train(tmp_path, epoch, tmp_path / "alone", alone["checkpoint"] if alone else None)
        job = json.loads((tmp_path / "job.json").read_text())
        job |= {"checkpoint_dir": str(tmp_path / "shared"), "result": str(tmp_path / "shared.json")}
        job |= {"resume": shared["checkpoint"] if shared else None}
        job["settings"] |= {"processes": 2}
        file = tmp_path / "shared-job.json"
        file.write_text(json.dumps(job))
        if number == 1:
            trainer.stop()  # so that the shards are read from the checkpoint
        await trainer.do(file, 2)
        shared = json.loads((tmp_path / "shared.json").read_text())
    assert alone is not None and shared is not None
    one, two = (load_file(Path(result["hf_path"]) / "model.safetensors") for result in (alone, shared))
    before = load_file(base / "model.safetensors")
    for name, tensor in one.items():
        assert not tensor.equal(before[name])
        # AdamW's first steps are of the learning rate's size, whatever the gradient: 1 % of that is rounding.
        assert (two[name] - tensor).abs().max() < 1e-4, name
    assert shared["trained_tokens"] == alone["trained_tokens"]
    assert shared["pg_loss"] == pytest.approx(alone["pg_loss"], abs=1e-5)
    job = json.loads(file.read_text()) | {"resume": alone["checkpoint"], "epoch": 3}
    file.write_text(json.dumps(job))
    with pytest.raises(ConfigError, match="is of 1 processes and this job of 2"):
        await trainer.do(file, 2)
