"""The run's training process: it stays for the next job, and one that ended is replaced."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from tasks.update import Trainer

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
