"""Warm start: cross entropy on the sampled tokens of recorded rows, with the same engine as the RL update."""

import math
import random
import shutil
import time
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from itertools import count
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from proxy_addons.errors import ConfigError
from training.checkpoint import export
from training.cpu_platform import select_device
from training.job import SftSettings
from training.rows import Row

WARMUP = 30
"""Steps in which the learning rate rises, where the fit is not told in passes."""


def fit(
    rows: Sequence[Row],
    model_dir: Path,
    out_dir: Path,
    settings: SftSettings,
    seed: int,
    openings: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Train the model in `model_dir` on `rows` and write it to `out_dir` as a Hugging Face folder, replacing it.

    `openings` is how many leading tokens of a rollout's rows the first `opening_steps` leave out. Every row comes once
    before any comes again, in orders drawn from `seed`. Returns optimizer steps, trained tokens, seconds, the largest
    gradient norm, and the mean loss per token (nats) of every tenth of the steps. Raises ConfigError without a row.
    """
    if not rows:
        raise ConfigError("warm start: no row to train on; the teacher's rollouts have no successful, whole recording")
    select_device(settings.device)
    from training.learner import Learner  # veRL fixes its device when it is imported
    from training.learner import seed_everything

    start = time.perf_counter()
    whole = settings.steps
    if settings.passes is not None:
        whole = settings.passes * math.ceil(len(rows) / settings.batch_rows)
    total = settings.opening_steps + whole
    warmup = WARMUP if settings.passes is None else max(1, total // 10)
    learner = Learner(model_dir, settings, schedule="cosine", warmup_steps=warmup, total_steps=total)
    seed_everything(seed, 0)
    short = [without_opening(row, (openings or {}).get(row.rollout, 0)) for row in rows]
    plan = chain(
        islice(batches(short, settings.batch_rows, seed), settings.opening_steps),
        islice(batches(rows, settings.batch_rows, seed + 1), whole),
    )
    steps = []
    for number, batch in enumerate(plan, 1):
        steps.append(learner.imitate(batch))
        if number % 10 == 0:
            print(f"step {number} of {total}: loss {steps[-1]['loss']:.4f} per token", flush=True)
    temporary = out_dir.with_name(f".tmp-{out_dir.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    export(learner, model_dir, temporary, getattr(torch, settings.dtype), rows[0])
    shutil.rmtree(out_dir, ignore_errors=True)
    temporary.rename(out_dir)
    tenths = [steps[i * total // 10 : (i + 1) * total // 10] for i in range(10)]
    return {
        "optimizer_steps": total,
        "trained_tokens": sum(round(s["tokens"]) for s in steps),
        "loss": [sum(s["loss"] * s["tokens"] for s in t) / sum(s["tokens"] for s in t) for t in tenths if t],
        "grad_norm": max(s["grad_norm"] for s in steps),
        "seconds": round(time.perf_counter() - start, 3),
    }


def batches(rows: Sequence[Row], size: int, seed: int) -> Iterator[list[Row]]:
    """Without end: the rows in parts of `size` (a round's last one smaller), each round in an order of its own."""
    for round_ in count():
        order = list(rows)
        random.Random(f"{seed}/{round_}").shuffle(order)
        for first in range(0, len(order), size):
            yield order[first : first + size]


def shared_openings(rows: Sequence[Row], harness: Mapping[str, str]) -> dict[str, int]:
    """Rollout → length of the opening that all rows of its harness share; `harness` is each rollout's."""
    by_harness: dict[str, list[list[int]]] = {}
    for row in rows:
        by_harness.setdefault(harness[row.rollout], []).append(list(row.ids))
    length = {name: _shared(own) for name, own in by_harness.items()}
    return {row.rollout: min(length[harness[row.rollout]], row.mask.index(1) - 1) for row in rows}


def _shared(texts: Sequence[list[int]]) -> int:
    """How many leading tokens are the same in all `texts`."""
    least, most = min(texts), max(texts)
    return next((i for i, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), min(len(least), len(most)))


def without_opening(row: Row, length: int) -> Row:
    """The row without its first `length` tokens, none of which may be trained."""
    return replace(row, ids=row.ids[length:], mask=row.mask[length:], logprobs=row.logprobs[length:])
