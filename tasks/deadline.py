"""A group does not wait for its slowest rollout for ever.

When half of a group's rollouts have a reward (two at least), the others get a number of seconds more, from that moment
or from their own begin if that is later; one that is not done by then is ended. It has no reward, so it is out of the
baseline, and it is on record (exit `overdue`, finding `group_deadline`), so it is counted and not owed again. Slow is
measured against the rollout's own group: a task that is slow as a whole waits for half of its rollouts like any other,
and stays as frequent in the batches.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

FINDING = "group_deadline"


class Overdue(Exception):
    """The group has waited for this rollout long enough; the message is the reason on record."""


class Deadline:
    """One group's, of `size` rollouts; `seconds` is what is left once half of them have a reward."""

    def __init__(self, seconds: float, size: int) -> None:
        self._seconds = seconds
        self._missing = max(2, (size + 1) // 2)
        self._enough = asyncio.Event()

    def ended(self, reward: float | None) -> None:
        """Tell of a rollout of the group that ended."""
        self._missing -= reward is not None
        if self._missing <= 0:
            self._enough.set()

    async def passed(self) -> str:
        """Returns when a rollout that begins now has been waited for long enough, with the reason to record."""
        await self._enough.wait()
        await asyncio.sleep(self._seconds)
        return f"ended: half of its group was done, and it was not {self._seconds:g} s later (group_deadline_s)"


@asynccontextmanager
async def late(deadline: Deadline | None) -> AsyncIterator["asyncio.Future[str]"]:
    """A future for a rollout that begins with the block: done, with the reason, when it is to be ended."""
    loop = asyncio.get_running_loop()
    future = asyncio.ensure_future(deadline.passed()) if deadline else loop.create_future()
    try:
        yield future
    finally:
        future.cancel()
