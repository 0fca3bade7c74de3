"""A stage of the flow on a real Prefect server, where only what a try comes to is made up."""

import asyncio
from functools import cache
from pathlib import Path
from typing import Any
from typing import cast

import pyarrow as pa

from flows.config import RunConfig
from flows.train import Session
from proxy_addons import records
from proxy_addons.identity import Rollout
from proxy_addons.live import Limits
from tasks.epoch import Group
from tasks.rollout import Arena
from tasks.rollout import Slot
from tasks.rollout import calls_path
from tasks.run import RunFolder
from tasks.slots import Slots
from tasks.taskset import Task
from tests.support.calls import Recording


def session_in(folder: Path, slots: int = 2) -> Session[RunConfig]:
    """A session whose arena has nothing but files and `slots` rollouts at a time."""
    nothing = cast(Any, None)
    arena = Arena(
        proxy=nothing,
        sandbox=nothing,
        harness_root=folder,
        folder=folder,
        scratch=folder / "scratch",
        limits=Limits(),
        memory_mb=1,
        cpus=1.0,
        pids=1,
        timeout_s=1.0,
        tries=1,
        slots=Slots(slots),
    )
    run = RunFolder(folder, {})
    return Session(RunConfig(), "r", run, [], [], folder, [], arena, nothing)


def groups_of(count: int, size: int) -> list[Group]:
    """`count` groups of `size` slots."""
    names = [f"t{n}" for n in range(count)]
    tasks = {name: Task(name, "kind", "train", "go", Path("/none"), 1.0, 1.0, "digest") for name in names}
    harness = cast(Any, None)
    return [[Slot(Rollout("r", 1, name, s), tasks[name], harness, "train") for s in range(size)] for name in names]


async def solved(slot: Slot, rollout: Rollout, arena: Arena, *_: Any) -> dict[str, Any]:
    """A try with one call on disk, the same one in all, and reward 1."""
    path = calls_path(arena.folder, rollout)
    await asyncio.to_thread(records.write, str(path), _one_call())
    return Recording(rollout.sample, rollout.task).ended(1.0, calls_path=str(path))


@cache
def _one_call() -> pa.Table:
    recording = Recording()
    recording.call(None, [1], [2])
    return records.table(recording.calls, records.CALLS)
