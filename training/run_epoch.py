"""One epoch's update as its own process: `python -m training.run_epoch JOB.json`.

Its own process, so that torch's memory ends with it and a crash takes nothing else along. It reads the job
(`job.TrainJob`), builds rows and advantages, updates, publishes a checkpoint and writes RESULT.json last. If nothing
can be trained the step is skipped (case O60): the result says so, with the counts, names the checkpoint that the job
went on from, and has no new `hf_path`.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import torch

from proxy_addons import records
from proxy_addons.errors import ConfigError
from proxy_addons.packing import read_calls
from training import main_ppo
from training import standing
from training.advantages import group_advantages
from training.advantages import why_excluded
from training.checkpoint import read_state
from training.checkpoint import save_checkpoint
from training.cpu_platform import rank
from training.cpu_platform import select_device
from training.job import TrainJob
from training.job import TrainSettings
from training.process import run_job
from training.process import write_result
from training.rows import Row
from training.rows import RowReport
from training.rows import build_rows
from training.vision import vision_of

if TYPE_CHECKING:
    from training.front import Front
    from training.learner import Learner

AGREEMENT_LIMIT = 0.02
"""Mean |trainer - recorded| log-probability above which the two do not compute the same policy."""

REFUSED_LIMIT = 0.2
"""Share of the sampled tokens that may be refused, or of the others rejected, without an alarm (case O36)."""


class InHand:
    """The learner between two jobs of one process, and the checkpoint that it equals. `front` is where the process
    serves the policy, if it does."""

    def __init__(self) -> None:
        self.front: Front | None = None
        self._learner: Learner | None = None
        self._equals: tuple[str, str | None, TrainSettings] | None = None

    def take(self, job: TrainJob) -> "Learner":
        """A learner as `job` wants to begin. It is the caller's, and not used again before `keep`."""
        learner = self._learner if self._equals == (job.base_model, job.resume, job.settings) else None
        self._learner = self._equals = None
        if learner is None:
            from training.learner import Learner  # veRL fixes its device when it is imported

            learner = Learner(Path(job.base_model), job.settings, seed=job.seed)
            if job.resume is not None:
                learner.load(Path(job.resume) / "trainer")
        return learner

    def keep(self, learner: "Learner", job: TrainJob, checkpoint: Path) -> None:
        """`learner` is what `checkpoint`, just written by `job`, holds."""
        self._learner, self._equals = learner, (job.base_model, str(checkpoint), job.settings)


def run_epoch(job: TrainJob, in_hand: InHand | None = None) -> dict[str, Any]:
    """Do `job` and return the result, which is also written to `job.result`. `in_hand`: what an earlier job left.

    Raises ConfigError if the job cannot be right and InfrastructureError if the checkpoint cannot be trusted.
    """
    seconds: dict[str, float] = {}
    if job.resume is not None:
        _check_resume(job, read_state(Path(job.resume)))
    with _timed(seconds, "rows"):
        rollouts = records.read(job.rollouts, records.ROLLOUTS)
        rows, row_report = _rows(job, rollouts)
        advantages, group_report = group_advantages(
            rollouts,
            {row.rollout for row in rows},
            job.settings.negative_weight,
            job.settings.advantage,
            job.settings.outcome_gate,
        )
        # An advantage of 0 has no gradient: no pass for it, unless there is another term that has one.
        others = job.settings.kl_coef or job.settings.entropy_coef
        rows = [row for row in rows if advantages.get(row.rollout) or (others and row.rollout in advantages)]
    result: dict[str, Any] = {
        "epoch": job.epoch,
        "skipped": not rows,
        "rows": len(rows),
        "rollouts": len({row.rollout for row in rows}),
        "trained_tokens": sum(row.trained_tokens for row in rows),
        "row_tokens": sum(len(row.ids) for row in rows),
        "staleness": dict(sorted(Counter(job.weight_version - row.weight_version for row in rows).items())),
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
        if job.settings.trainer == "main_ppo":
            rewards = {rollout["rollout"]: rollout["reward"] for rollout in rollouts}
            try:
                with _timed(seconds, "main_ppo"):
                    front = in_hand.front if in_hand else None
                    numbers, folder = main_ppo.update(job, rows, advantages, rewards, front)
            finally:
                if in_hand is None:
                    standing.end()
        else:
            numbers, folder = _update(job, rows, advantages, seconds, in_hand or InHand())
        result |= {**numbers, "checkpoint": str(folder), "hf_path": str(folder / "hf")}
        for what in ("rows", "rollouts"):
            result[what] -= result.get("off_policy", {}).get(f"{what}_rejected", 0)
        result["trained_tokens"] -= result.get("off_policy", {}).get("rejected_tokens", 0)
    else:
        result |= {"checkpoint": job.resume, "hf_path": None}
    result |= {"alarms": alarms(result, row_report), "seconds": {k: round(v, 3) for k, v in seconds.items()}}
    if rank() == 0:
        write_result(Path(job.result), result)
    return result


def _check_resume(job: TrainJob, state: dict[str, Any]) -> None:
    if state["epoch"] >= job.epoch:
        raise ConfigError(
            f"resume: {job.resume} already holds epoch {state['epoch']}; job epoch {job.epoch} would train twice"
        )
    names = ("trainer", "strategy", "ranks")
    if {name: state[name] for name in names if name in state} != main_ppo.written_by(job.settings):
        raise ConfigError(
            f"resume: {job.resume} is not a checkpoint of this trainer, strategy and number of ranks; go on with the"
            " same, or start a new run with its hf folder as the model"
        )
    before, now = (_adapter(*lora) for lora in (state.get("lora", (0, 0)), job.settings.lora))
    if before != now:
        raise ConfigError(
            f"resume: {job.resume} trained {before} and this job trains {now}; go on with the same, or start a new run"
            " with its hf folder as the model"
        )


def _adapter(rank: int, alpha: int) -> str:
    return f"a LoRA adapter of rank {rank} and alpha {alpha}" if rank else "all weights"


def _rows(job: TrainJob, rollouts: list[dict[str, Any]]) -> tuple[list[Row], RowReport]:
    counting = {rollout["rollout"] for rollout in rollouts if why_excluded(rollout) is None}
    calls = (_placed(call, path) for path in job.calls for call in read_calls(path) if call["rollout"] in counting)
    vision = vision_of(Path(job.base_model))
    return build_rows(
        calls,
        max_row_tokens=job.settings.max_row_tokens,
        weight_version=job.weight_version,
        max_staleness=job.settings.max_staleness,
        leave_out=job.settings.leave_out,
        unseen=vision.why_not if vision else None,
    )


def _placed(call: dict[str, Any], path: str) -> dict[str, Any]:
    """The call with the places of its images, which lie beside the calls file under their hashes."""
    return call | {"images": [f"{path.rpartition('/')[0]}/images/{name}" for name in call["images"] or ()]}


def _update(
    job: TrainJob, rows: list[Row], advantages: dict[str, float], seconds: dict[str, float], in_hand: InHand
) -> tuple[dict[str, Any], Path]:
    with _timed(seconds, "load"):
        device = select_device(job.settings.device)
        learner = in_hand.take(job)
    with _timed(seconds, "update"):
        numbers = learner.update(rows, advantages, job.seed, job.epoch)
    with _timed(seconds, "checkpoint"):
        folder = save_checkpoint(
            learner,
            Path(job.checkpoint_dir),
            {"epoch": job.epoch, "seed": job.seed, "lora": job.settings.lora},
            base_model=Path(job.base_model),
            dtype=getattr(torch, job.settings.dtype),
            probe=rows[0],
            keep=job.settings.keep_checkpoints,
        )
    in_hand.keep(learner, job, folder)
    return {"device": device, **numbers}, folder


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
    if (rejected := result.get("off_policy", {}).get("rejected_share", 0)) > REFUSED_LIMIT:
        found.append(f"{rejected:.0%} of the tokens to train were rejected: trainer and record are too far apart there")
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
    os.dup2(2, 1)  # Ray prints there what its processes say
    sys.exit(main(sys.argv[1:]))
