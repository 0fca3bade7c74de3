"""Updates in a process of their own: its memory and its crashes stay out of the flow's."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from proxy_addons import errors
from proxy_addons import records
from proxy_addons.errors import InfrastructureError
from tasks.run import ROOT
from tasks.run import RunFolder
from training.child import Child
from training.child import free_port
from training.child import start_child
from training.job import EXIT_CODES
from training.job import ServeJob
from training.job import TrainJob
from training.job import TrainSettings
from training.policy_server import BF16_TOLERANCE
from training.policy_server import TOLERANCE
from training.policy_server import PolicyServer
from training.policy_server import attached_policy_server

END_S = 10.0
"""How long a training process may take to end what it started."""


class Trainer:
    """The training processes of a run, mostly one. They start with the first job and stay for the next, so that veRL is
    imported and the model loaded once; if a job ends one of them, the next job starts anew, from the checkpoint.

    `first` is the file of the `ServeJob` that new processes do before any other, if the trainer serves the policy."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.first: Path | None = None
        self._children: list[Child] = []

    async def do(self, job: Path | None = None, processes: int = 1) -> None:
        """Do the `TrainJob` in the file `job`; None: only what new processes do first. Raises the failure class of the
        exit code, with its last line."""
        if len(self._children) != processes or not all(child.alive() for child in self._children):
            self.stop()
            self._children = [self._start(rank, env) for rank, env in enumerate(_ranks(processes))]
            if self.first:
                await self._ask(self.first)
        if job:
            await self._ask(job)

    async def _ask(self, job: Path) -> None:
        asked = {asyncio.ensure_future(asyncio.to_thread(_ask, child, job)): child for child in self._children}
        try:
            waiting = set(asked)
            while waiting:  # the others wait for one that failed: the first to fail tells why
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    self._check(asked[each], each.result())
        except asyncio.CancelledError:
            self.stop()  # they are in the middle of an update
            raise

    def _start(self, rank: int, env: dict[str, str]) -> Child:
        log = self.log if rank == 0 else self.log.with_stem(f"{self.log.stem}-{rank}")
        return start_child([sys.executable, "-m", "training.resident"], log, env=env, cwd=ROOT, talk=True)

    def _check(self, child: Child, code: int | None) -> None:
        if code != 0 and (code is None or len(self._children) > 1):
            self.stop()
        if code is None:
            raise InfrastructureError(f"the trainer ended: {child.last_lines(1)}; its log is {child.log}")
        _check("the trainer", code, child, child.log)

    def stop(self) -> None:
        """End the processes, if there are any."""
        for child in self._children:
            child.process.terminate()  # before those that it started, so that it can end them
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(END_S)
            child.stop()
        self._children = []


def _ranks(processes: int) -> list[dict[str, str]]:
    """The environment of each process."""
    if processes == 1:
        return [dict(os.environ)]
    shared = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [{**os.environ, **shared, "RANK": str(n), "LOCAL_RANK": str(n)} for n in range(processes)]


def _ask(child: Child, job: Path) -> int | None:
    """The exit code of a job; None if the process has ended without one."""
    assert child.process.stdin is not None
    assert child.process.stdout is not None
    try:
        child.process.stdin.write(f"{job}\n".encode())
        child.process.stdin.flush()
    except BrokenPipeError:
        return None
    line = child.process.stdout.readline()
    return int(line) if line else None


@asynccontextmanager
async def serving(
    run: RunFolder, base_model: Path, epochs: int, seed: int, settings: dict[str, Any], trainer: Trainer
) -> AsyncIterator[list[PolicyServer]]:
    """The policy servers that the trainer's replicas are, for the time of the block. They begin with the newest weights
    of the run's `epochs`.

    Raises ConfigError or InfrastructureError with the trainer's own line.
    """
    folder, version = run.weights(epochs, base_model)
    own = {"epoch": version, "rollouts": "", "calls": (), "result": str(run.path / "serving" / "result.json")}
    begins = _job(run, base_model, version, seed, settings, **own)
    job = ServeJob(port=free_port(), begins=begins)
    trainer.first = run.path / "serving" / "job.json"
    trainer.first.parent.mkdir(exist_ok=True)
    trainer.first.write_text(job.model_dump_json(indent=1))
    await trainer.do()
    tolerance = TOLERANCE if begins.settings.dtype == "float32" else BF16_TOLERANCE
    async with AsyncExitStack() as stack:
        policies = []
        for number in range(begins.settings.replicas):
            url = f"http://127.0.0.1:{job.port}/{number}"
            policy = await stack.enter_async_context(attached_policy_server(url, base_model, tolerance=tolerance))
            policy.folder, policy.version = folder, version
            await policy.check()
            policies.append(policy)
        yield policies


async def train(
    run: RunFolder, base_model: Path, epoch: int, seed: int, settings: dict[str, Any], trainer: Trainer
) -> dict[str, Any]:
    """Update the weights from the rollouts of `epoch`; returns a few numbers, the whole result is `train.json`.

    Raises ConfigError or InfrastructureError with the trainer's own line.
    """
    folder = run.epoch(epoch)
    rows = records.read(
        str(folder / "rollouts.parquet"), records.ROLLOUTS, ["calls_path", "complete", "weight_version"]
    )
    job = _job(
        run,
        base_model,
        run.weights(epoch - 1, base_model)[1],
        seed,
        settings,
        epoch=epoch,
        rollouts=str(folder / "rollouts.parquet"),
        calls=tuple(row["calls_path"] for row in rows if row["complete"]),
        result=str(folder / "train.json"),
    )
    (folder / "job.json").write_text(job.model_dump_json(indent=1))
    await trainer.do(folder / "job.json", job.settings.residents)
    result = run.train_result(epoch)
    if result is None:
        raise InfrastructureError(f"training ended without a result; its log is {trainer.log}")
    return {key: result[key] for key in ("rows", "trained_tokens", "skipped", "hf_path") if key in result}


def _job(run: RunFolder, base_model: Path, version: int, seed: int, settings: dict[str, Any], **own: Any) -> TrainJob:
    """A job that begins with the weights of `version`, as `RunFolder.weights` gives it; the rest is its `own`."""
    before = run.train_result(version) if version else None
    return TrainJob(
        base_model=str(base_model),
        resume=before["checkpoint"] if before else None,
        seed=seed,
        weight_version=version,
        checkpoint_dir=str(run.path / "checkpoints"),
        settings=TrainSettings(**settings),
        **own,
    )


async def run_module(module: str, job: Path, log: Path) -> None:
    """Run `python -m module job` to its end; it is stopped if we are cancelled and dies if we do.

    Raises the failure class that its exit code names, with its last line.
    """
    child = start_child([sys.executable, "-m", module, str(job)], log, env=os.environ, cwd=ROOT)
    try:
        code = await asyncio.to_thread(child.process.wait)
    finally:
        if child.alive():
            child.stop()
    _check(module, code, child, log)


def _check(who: str, code: int, child: Child, log: Path) -> None:
    if code != 0:
        names = {number: name for name, number in EXIT_CODES.items()}
        error = getattr(errors, names.get(code, "InfrastructureError"))
        raise error(f"{who} (exit {code}): {child.last_lines(1)}; its log is {log}")
