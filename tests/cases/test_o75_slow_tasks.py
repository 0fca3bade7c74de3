"""O75: in mode `async` a task slower than the staleness limit is trained on as often as any other: its epoch waits for
it, and what it says is never too old by then, because it began in time."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from flows.overlap import overlap
from tasks import harnesses
from tasks.epoch import plan_training
from tasks.slots import Slots
from tasks.taskset import Task

EPOCHS, SIZE, LIMIT = 6, 2, 1
UPDATE_S = 0.02
SECONDS = {"slow": 2.5 * LIMIT * UPDATE_S, "quick-a": 0.0, "quick-b": 0.001, "quick-c": 0.005}


async def test_o75_a_task_slower_than_the_staleness_limit_keeps_its_share(tmp_path: Path) -> None:
    tasks = [Task(name, "kind", "train", "do it", Path("/none"), 1.0, 1.0, name) for name in SECONDS]
    slots, served = Slots(4), 0
    began: dict[str, int] = {}
    votes: Counter[str] = Counter()
    oldest: list[int] = []

    def plan(epoch: int) -> list[Any]:
        chosen = [harnesses.load("codex")]
        return [slot for group in plan_training("r", epoch, 0, tasks, chosen, 2, SIZE) for slot in group]

    async def roll_out(slot: Any) -> None:
        async with slots.place(slot.rollout.epoch):
            began[slot.rollout.id] = served
            await asyncio.sleep(SECONDS[slot.task.id])

    async def collect(epoch: int) -> None:
        await asyncio.gather(*map(roll_out, plan(epoch)))

    async def learn(epoch: int) -> dict[str, Any]:
        nonlocal served
        await asyncio.sleep(UPDATE_S)
        oldest.append(max(epoch - 1 - began[slot.rollout.id] for slot in plan(epoch)))
        votes.update(slot.task.id for slot in plan(epoch))
        served = epoch
        return {}

    await overlap(range(1, EPOCHS + 1), LIMIT, lambda epoch: epoch, collect, learn, tmp_path, slots)
    assert votes == dict.fromkeys(SECONDS, EPOCHS * 2 * SIZE // len(SECONDS))
    assert max(oldest) == LIMIT
