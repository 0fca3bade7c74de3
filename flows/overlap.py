"""Mode `async`: the rollouts of later epochs run while an epoch trains.

Epochs stay what they are in mode `sync`: which epoch a rollout belongs to is planned, an epoch trains when all of its
rollouts are there, and nothing is dropped for being slow. Only the waiting goes: an epoch's rollouts begin as soon as
the weights that are served are at most `max_staleness` versions older than those that it will train. They take the
places that earlier epochs leave free, so no place waits for another one's straggler, and new weights are published in
their midst. Rollouts wait for an update only at that bound, an update only for its own epoch's rollouts.

An epoch that could train nothing leaves the weights and their version as they were, but the epoch after it may get a
version two ahead: so how far the weights of an epoch that is not next will be ahead is taken at its worst.
"""

import asyncio
import time
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tasks.epoch import stage
from tasks.slots import Slots


async def overlap(
    epochs: range,
    max_staleness: int,
    version: Callable[[int], int],
    collect: Callable[[int], Coroutine[Any, Any, None]],
    learn: Callable[[int], Awaitable[dict[str, Any]]],
    run_folder: Path,
    slots: Slots,
) -> None:
    """`collect` and `learn` each epoch of `epochs`, the first of which is the next to train.

    Args:
        epochs: consecutive epochs; the weights after the one before the first are served already.
        max_staleness: versions, at least 0; with 0 nothing overlaps.
        version: from a finished epoch to the version of the weights after it.
        collect: runs an epoch's rollouts, on `slots`.
        learn: trains an epoch that is collected, and serves its weights; returns facts for `stages.jsonl`, where each
            epoch has a line `overlap` with its share of waiting: of the update for rollouts, and of the rollouts'
            places for anything to do.

    Raises the first error that is met, when nothing runs any more. An update under way is finished before an error of
    the rollouts of a later epoch is raised: its result is whole, and a resumed run goes on from it.
    """
    batches: dict[int, asyncio.Task[None]] = {}
    try:
        for epoch in epochs:
            trained, served = epoch - 1, version(epoch - 1)
            for ahead in range(epoch, epochs.stop):
                newest = served if ahead == epoch else ahead - 1
                if ahead not in batches and newest - served <= max_staleness:
                    print(f"epoch {ahead}: its rollouts begin with weights {served}, after epoch {trained}")
                    batches[ahead] = asyncio.create_task(collect(ahead))
            with stage(run_folder, "overlap", epoch) as facts:
                begun, used_s = time.monotonic(), slots.used_s
                await batches[epoch]
                waited_s = time.monotonic() - begun
                facts |= await learn(epoch)
                seconds = time.monotonic() - begun
                facts["update_waited"] = round(waited_s / seconds, 4)
                facts["slots_idle"] = round(1 - (slots.used_s - used_s) / (slots.count * seconds), 4)
    finally:
        for batch in batches.values():
            batch.cancel()
        await asyncio.gather(*batches.values(), return_exceptions=True)
