"""One update as a process of its own: its memory and its crashes stay out of the flow's."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from proxy_addons import errors
from proxy_addons import records
from proxy_addons.errors import InfrastructureError
from tasks.run import ROOT
from tasks.run import RunFolder
from training.child import start_child
from training.job import EXIT_CODES
from training.job import TrainJob
from training.job import TrainSettings


async def train(run: RunFolder, base_model: Path, epoch: int, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Update the weights from the rollouts of `epoch`; returns a few numbers, the whole result is `train.json`.

    Raises ConfigError or InfrastructureError with the trainer's own line.
    """
    folder = run.epoch(epoch)
    rows = records.read(
        str(folder / "rollouts.parquet"), records.ROLLOUTS, ["calls_path", "complete", "weight_version"]
    )
    _, version = run.weights(epoch - 1, base_model)
    before = run.train_result(version) if version else None
    job = TrainJob(
        base_model=str(base_model),
        resume=before["checkpoint"] if before else None,
        epoch=epoch,
        seed=seed,
        weight_version=version,
        rollouts=str(folder / "rollouts.parquet"),
        calls=tuple(row["calls_path"] for row in rows if row["complete"]),
        checkpoint_dir=str(run.path / "checkpoints"),
        result=str(folder / "train.json"),
        settings=TrainSettings(**settings),
    )
    (folder / "job.json").write_text(job.model_dump_json(indent=1))
    await run_module("training.run_epoch", folder / "job.json", run.path / "logs" / f"train-{epoch:03}.log")
    result = run.train_result(epoch)
    if result is None:
        raise InfrastructureError(f"training ended without a result; its log is {run.path}/logs/train-{epoch:03}.log")
    return {key: result[key] for key in ("rows", "trained_tokens", "skipped", "hf_path") if key in result}


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
    if code != 0:
        names = {number: name for name, number in EXIT_CODES.items()}
        error = getattr(errors, names.get(code, "InfrastructureError"))
        raise error(f"{module} (exit {code}): {child.last_lines(1)}; its log is {log}")
