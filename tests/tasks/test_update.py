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

from proxy_addons.engine import EngineClient
from proxy_addons.engine import Sampling
from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from proxy_addons.wire import Connections
from tasks.run import RunFolder
from tasks.update import Trainer
from tasks.update import serving
from tests.support.epochs import record
from tests.support.epochs import train
from tests.support.policy import save_policy
from training.policy_server import attached_policy_server

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


@pytest.mark.timeout(600)  # each process imports torch and veRL
@pytest.mark.parametrize("settings", [{}, {"lora_rank": 4}], ids=["weights", "adapter"])
async def test_one_or_two_processes_go_on_from_what_two_or_one_left(
    trainer: Trainer, tmp_path: Path, settings: dict[str, int]
) -> None:
    base = save_policy(tmp_path / "base")
    recorded = [record(tmp_path, base, epoch, [1.0, 0.0, 0.5, 0.0]) for epoch in (1, 2)]
    alone: list[dict[str, Any]] = []
    jobs = []
    for epoch in recorded:
        resume = alone[-1]["checkpoint"] if alone else None
        alone.append(train(tmp_path, epoch, tmp_path / "alone", resume, **settings))
        jobs.append(json.loads((tmp_path / "job.json").read_text()))

    async def shared(number: int, resume: str | None, processes: int) -> dict[str, Any]:
        """The same epoch by so many processes that go on from `resume`."""
        job = jobs[number] | {"resume": resume, "result": str(tmp_path / "shared.json")}
        job |= {"checkpoint_dir": str(tmp_path / "shared")}
        job["settings"] |= {"processes": processes}
        file = tmp_path / "shared-job.json"
        file.write_text(json.dumps(job))
        trainer.stop()  # so that what goes on is read from the checkpoint
        await trainer.do(file, processes)
        found: dict[str, Any] = json.loads((tmp_path / "shared.json").read_text())
        return found

    by_two = await shared(0, None, 2)
    assert same(by_two, alone[0], base)
    for resume, processes in ((by_two, 1), (alone[0], 2)):
        found = await shared(1, resume["checkpoint"], processes)
        assert same(found, alone[1], base), (resume["checkpoint"], processes)


@pytest.mark.timeout(900)  # Ray starts twice
async def test_a_trainer_that_serves_its_adapter_serves_again_after_its_process_was_killed(
    trainer: Trainer, tmp_path: Path
) -> None:
    base = save_policy(tmp_path / "base")
    run = RunFolder(tmp_path, {})
    settings = {"trainer": "main_ppo", "device": "cpu", "threads": 1, "lora_rank": 4, "dtype": "bfloat16"}
    settings |= {"served_len": 64, "learning_rate": 1e-1}
    async with serving(run, base, 1, 7, settings, trainer) as policies, Connections() as connections:
        (policy,) = policies
        client = EngineClient(policy.url, connections)
        assert (await client.generate([1, 2, 3], Sampling(max_tokens=4))).weight_version == 0
        (first,) = processes()
        first.kill()
        told = json.loads((tmp_path / "serving" / "job.json").read_text())["begins"]
        job = tmp_path / "job.json"
        epoch = record(tmp_path, base, 1, [1.0, 0.0, 0.5])
        job.write_text(json.dumps(told | epoch | {"result": str(tmp_path / "result.json")}))
        await trainer.do(job)
        assert processes() != [first]
        trained = Path(json.loads((tmp_path / "result.json").read_text())["hf_path"])
        # Weights are rounded to bfloat16 in the folder and as they are served; both then compute in float32.
        async with attached_policy_server(policy.url, base, tolerance=2e-3) as exact:
            await exact.reload(trained, 1)
            assert (await client.generate([1, 2, 3], Sampling(max_tokens=4))).weight_version == 1
            exact.folder = base
            with pytest.raises(InfrastructureError, match="does not serve the weights"):
                await exact.check()


def same(found: dict[str, Any], wanted: dict[str, Any], base: Path) -> bool:
    """Whether two results are of the same update, within rounding, and it was one."""
    one, two, before = (
        load_file(folder / "model.safetensors") for folder in (Path(found["hf_path"]), Path(wanted["hf_path"]), base)
    )
    # AdamW's first steps are of the learning rate's size, whatever the gradient: 1 % of that is rounding.
    assert max(float((one[name] - two[name]).abs().max()) for name in two) < 1e-4
    assert one.keys() == two.keys()
    assert found["trained_tokens"] == wanted["trained_tokens"]
    assert found["pg_loss"] == pytest.approx(wanted["pg_loss"], abs=1e-5)
    return not all(one[name].equal(before[name]) for name in before)
