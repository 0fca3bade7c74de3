"""One epoch's update as its own process: `python -m training.run_epoch JOB.json`.

Its own process, so that torch's memory ends with it and a crash takes nothing else along. It reads the job
(`job.TrainJob`), builds rows and advantages, updates, publishes a checkpoint and writes RESULT.json last. If nothing
can be trained the step is skipped (case O60): the result says so, with the counts, names the checkpoint that the job
went on from, and has no new `hf_path`.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from proxy_addons import records
from proxy_addons.errors import ConfigError
from proxy_addons.packing import read_calls
from training.advantages import group_advantages
from training.advantages import why_excluded
from training.checkpoint import read_state
from training.checkpoint import save_checkpoint
from training.cpu_platform import select_device
from training.job import TrainJob
from training.process import run_job
from training.process import write_result
from training.rows import Row
from training.rows import RowReport
from training.rows import build_rows

AGREEMENT_LIMIT = 0.02
"""Mean |trainer - recorded| log-probability above which the two do not compute the same policy."""

REFUSED_LIMIT = 0.2
"""Share of sampled tokens that may go untrained without an alarm (case O36)."""


def run_epoch(job: TrainJob) -> dict[str, Any]:
    """Do `job` and return the result, which is also written to `job.result`.

    Raises ConfigError if the job cannot be right and InfrastructureError if the checkpoint cannot be trusted.
    """
    seconds: dict[str, float] = {}
    if job.resume is not None and (done := read_state(Path(job.resume))["epoch"]) >= job.epoch:
        raise ConfigError(f"resume: {job.resume} already holds epoch {done}; job epoch {job.epoch} would train twice")
    with _timed(seconds, "rows"):
        rollouts = records.read(job.rollouts, records.ROLLOUTS)
        rows, row_report = _rows(job, rollouts)
        advantages, group_report = group_advantages(
            rollouts, {row.rollout for row in rows}, job.settings.negative_weight, job.settings.advantage
        )
        rows = [row for row in rows if advantages.get(row.rollout)]  # an advantage of 0 has no gradient: no pass for it
    result: dict[str, Any] = {
        "epoch": job.epoch,
        "skipped": not rows,
        "rows": len(rows),
        "rollouts": len({row.rollout for row in rows}),
        "trained_tokens": sum(row.trained_tokens for row in rows),
        "row_tokens": sum(len(row.ids) for row in rows),
        "prefix_breaks": row_report.prefix_breaks,
        "refused": dict(row_report.refused),
        "refused_tokens": dict(row_report.refused_tokens),
        "groups": {
            "total": group_report.groups,
            "kept": group_report.kept,
            "dropped": dict(group_report.dropped),
            "sizes": group_report.sizes,
        },
        "excluded": dict(group_report.excluded),
        "reward_mean": group_report.reward_mean,
    }
    if rows:
        result |= _update(job, rows, advantages, seconds)
    else:
        result |= {"checkpoint": job.resume, "hf_path": None}
    result |= {"alarms": alarms(result, row_report), "seconds": {k: round(v, 3) for k, v in seconds.items()}}
    write_result(Path(job.result), result)
    return result


def _rows(job: TrainJob, rollouts: list[dict[str, Any]]) -> tuple[list[Row], RowReport]:
    counting = {rollout["rollout"] for rollout in rollouts if why_excluded(rollout) is None}
    calls = (call for path in job.calls for call in read_calls(path) if call["rollout"] in counting)
    return build_rows(
        calls,
        max_row_tokens=job.settings.max_row_tokens,
        weight_version=job.weight_version,
        max_staleness=job.settings.max_staleness,
        leave_out=job.settings.leave_out,
    )


def _update(job: TrainJob, rows: list[Row], advantages: dict[str, float], seconds: dict[str, float]) -> dict[str, Any]:
    base = Path(job.base_model)
    with _timed(seconds, "load"):
        device = select_device(job.settings.device)
        from training.learner import Learner  # veRL fixes its device when it is imported

        learner = Learner(base, job.settings)
        if job.resume is not None:
            learner.load(Path(job.resume) / "trainer")
    with _timed(seconds, "update"):
        numbers = learner.update(rows, advantages, job.seed, job.epoch)
    with _timed(seconds, "checkpoint"):
        folder = save_checkpoint(
            learner,
            Path(job.checkpoint_dir),
            {"epoch": job.epoch, "seed": job.seed},
            base_model=base,
            dtype=getattr(torch, job.settings.dtype),
            probe=rows[0],
            keep=job.settings.keep_checkpoints,
        )
    return {"device": device, **numbers, "checkpoint": str(folder), "hf_path": str(folder / "hf")}


def alarms(result: dict[str, Any], report: RowReport) -> list[str]:
    """What a person should look at, one sentence each; empty if all is well."""
    found = []
    if result["skipped"]:
        found.append("nothing to train: the step was skipped")
    elif not result["logprob_agreement"]["mean"] <= AGREEMENT_LIMIT:
        versions = max(map(int, result.get("staleness", {})), default=0)
        # Updates since a row was sampled move the trainer away from it, whatever the server does.
        moved = f"trainer and rows up to {versions} versions old have moved apart, or the policy server is wrong"
        found.append(
            f"{moved if versions else 'trainer and policy server disagree'}: mean |difference| of log-probabilities is"
            f" {result['logprob_agreement']['mean']:.4f}, limit {AGREEMENT_LIMIT}"
        )
    if result.get("refused_steps"):
        found.append(f"{result['refused_steps']} optimizer steps refused: the gradient was not finite")
    if report.refused_share > REFUSED_LIMIT:
        found.append(
            f"{report.refused_share:.0%} of the sampled tokens were not trained: {dict(report.refused_tokens)}"
        )
    return found


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - start


def main(arguments: list[str]) -> int:
    """Run JOB.json; see `process.run_job`."""
    return run_job(arguments, TrainJob, run_epoch)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
