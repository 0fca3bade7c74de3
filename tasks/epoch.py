"""Which rollouts a stage wants, which of them are still owed, and what it all came to.

A stage is one round of rollouts in one folder: an epoch's training rollouts, or an evaluation. Recorded files are the
truth: what is whole on disk is never run again, what is torn or missing is owed.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from proxy_addons import records
from proxy_addons.errors import ConfigError
from proxy_addons.identity import Rollout
from tasks.deadline import Deadline
from tasks.harnesses import Harness
from tasks.rollout import Arena
from tasks.rollout import Slot
from tasks.rollout import fill
from tasks.rollout import fills
from tasks.rollout import read_row
from tasks.rollout import recorded
from tasks.rollout import row_path
from tasks.taskset import Task

_NOBODYS = ("InfrastructureError", "HarnessError", "ConfigError")

Group = list[Slot]
"""The slots of one task, in order; rewards are compared within it."""


def plan_training(
    run: str, epoch: int, seed: int, tasks: Sequence[Task], harnesses: Sequence[Harness], count: int, size: int
) -> list[Group]:
    """`count` groups of `size` for `epoch` (from 1). Every task comes once before any comes again, in an order drawn
    from `seed` in which the kinds take turns; a group has one harness, and the harnesses take turns. Raises ConfigError
    if there is no task."""
    train = [task for task in tasks if task.split == "train"]
    if not train:
        raise ConfigError("tasks: the set has no task with split `train`")
    groups = []
    for index in range(count):
        place = (epoch - 1) * count + index
        round_, position = divmod(place, len(train))
        task = _order(train, random.Random(f"{seed}-{round_}"))[position]
        harness = harnesses[_turn(place, len({task.kind for task in train}), len(harnesses))]
        groups.append([Slot(Rollout(run, epoch, task.id, s), task, harness, "train") for s in range(size)])
    return groups


def _order(tasks: Sequence[Task], rng: random.Random) -> list[Task]:
    """Shuffled, the kinds taking turns: an update that has seen one kind only unlearns the others."""
    by_kind: dict[str, list[Task]] = {}
    for task in rng.sample(tasks, len(tasks)):
        by_kind.setdefault(task.kind, []).append(task)
    return [task for turn in zip_longest(*by_kind.values()) for task in turn if task is not None]


def _turn(place: int, kinds: int, harnesses: int) -> int:
    """Whose turn it is at `place`. Where the harnesses go evenly into the kinds, each round of kinds starts with the
    next one, so that no kind always meets the same harness."""
    shift = place // kinds if kinds % harnesses == 0 else 0
    return (place + shift) % harnesses


def plan_heldout(
    run: str, epoch: int, kind: str, tasks: Sequence[Task], harnesses: Sequence[Harness], count: int, size: int
) -> list[Group]:
    """`count` held-out tasks, the same ones in every run, `size` rollouts each, the harnesses taking turns in a task.

    Raises ConfigError if the set has fewer.
    """
    heldout = [task for task in tasks if task.split == "heldout"]
    if len(heldout) < count:
        raise ConfigError(f"heldout_tasks: {count} asked for, the set has {len(heldout)} with split `heldout`")
    return [
        [Slot(Rollout(run, epoch, task.id, s), task, harnesses[s % len(harnesses)], kind) for s in range(size)]
        for task in random.Random("heldout").sample(heldout, count)
    ]


def owed(folder: Path, slots: Iterable[Slot], tries: int) -> list[Slot]:
    """The slots that no whole record fills."""
    return [slot for slot in slots if recorded(folder, slot, tries) is None]


async def run_group(group: Group, arena: Arena, deadline_s: float | None = None) -> dict[str, Any]:
    """Fill what is owed of `group`; a small manifest of what it came to. `deadline_s`: see `tasks.deadline`."""
    there = await asyncio.to_thread(lambda: [recorded(arena.folder, slot, arena.tries) for slot in group])
    rewards = [row["reward"] if row else None for row in there]
    todo = [place for place, row in enumerate(there) if row is None]
    deadline = Deadline(deadline_s, len(group)) if deadline_s else None

    async def one(place: int) -> None:
        row = await fill(group[place], arena, deadline)
        rewards[place] = row["reward"]
        if deadline:
            deadline.ended(row["reward"])

    if deadline:
        for row in there:
            if row:
                deadline.ended(row["reward"])
    await together(one(place) for place in todo)
    return {"group": group[0].group, "wanted": len(group), "ran": len(todo), "rewards": rewards}


async def together(coroutines: Iterable[Any]) -> None:
    """Wait for all; the first error ends the others, and is raised as it is."""
    running = [asyncio.ensure_future(each) for each in coroutines]
    try:
        await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def merge(folder: Path, groups: Iterable[Group], tries: int) -> list[dict[str, Any]]:
    """All recorded tries of `groups` in one `rollouts.parquet`; returns its rows. What lies behind the try that filled
    a slot is of an execution before: a resumed one begins with the first try again."""
    rows = []
    for slot in (slot for group in groups for slot in group):
        rollout = slot.rollout
        for _ in range(tries):
            row = read_row(row_path(folder, rollout))
            if row is not None:
                rows.append(row)
                if fills(row):
                    break
            rollout = rollout.next_try()
    records.write(str(folder / "rollouts.parquet"), records.table(rows, records.ROLLOUTS))
    return rows


def staleness(rows: Iterable[Mapping[str, Any]], version: int) -> dict[int, int]:
    """How many rollouts with a reward began how many versions before `version`, the one that they train."""
    began = (row["weight_version"] for row in rows if row["reward"] is not None and row["weight_version"] is not None)
    return dict(sorted(Counter(version - each for each in began).items()))


def check_progress(rows: Sequence[dict[str, Any]], name: str) -> None:
    """Raise the most frequent reason if no rollout of a stage came to anything (case O63)."""
    broken = [row["reason"] for row in rows if row["error_class"] in _NOBODYS]
    if rows and len(broken) == len(rows):
        reason = max(set(broken), key=broken.count)
        raise ConfigError(f"{name}: all {len(rows)} rollouts failed; most often: {reason}")


@contextmanager
def stage(run_folder: Path, name: str, epoch: int, **facts: Any) -> Iterator[dict[str, Any]]:
    """Time a stage and append it to `stages.jsonl`; the block may add facts to the dict it is given."""
    start, found = time.monotonic(), dict(facts)
    yield found
    line = {"stage": name, "epoch": epoch, "seconds": round(time.monotonic() - start, 3), **found}
    with (run_folder / "stages.jsonl").open("a") as log:
        log.write(json.dumps(line) + "\n")
