"""How many pods there may be at a time, how fast they are made, and whose turn it is.

The number falls when the cluster pushes back (429, a used-up quota, pods that find no node) and rises again with
every pod that ends. A try that follows a lost one goes first, then a verifier, because both end a rollout that has
begun; among the others the group with the fewest pods, so that no group waits for another's tail.
"""

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from dataclasses import field

_SHRINK = 0.7
_CALM_S = 5.0
"""One burst of refusals is one sign, not many."""


@dataclass(eq=False)
class _Waiter:
    group: str
    first: bool
    number: int
    turn: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Gate:
    """At most `ceiling` inside, at most `per_s` entering each second."""

    def __init__(self, ceiling: int, per_s: float) -> None:
        self._ceiling = ceiling
        self._limit = float(ceiling)
        self._pause = 1.0 / per_s
        self._next = 0.0
        self._inside: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []
        self._number = itertools.count()
        self._shrunk_at = -_CALM_S

    @property
    def limit(self) -> int:
        """How many may be inside now."""
        return int(self._limit)

    @contextlib.asynccontextmanager
    async def slot(self, group: str, first: bool) -> AsyncIterator[None]:
        """Wait for a place and hold it for the time of the block. `first`: before all that are not."""
        waiter = _Waiter(group, first, next(self._number))
        self._waiting.append(waiter)
        self._admit()
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:
                self._leave(group)
            raise
        try:
            await self._slow_down()
            yield
        finally:
            self._leave(group)

    def push_back(self) -> None:
        """The cluster cannot take what is inside: let fewer in from now on."""
        now = time.monotonic()
        if now - self._shrunk_at >= _CALM_S:
            self._shrunk_at = now
            self._limit = max(1.0, min(self._limit, self._inside.total()) * _SHRINK)

    def went_well(self) -> None:
        """A pod ran to its end: try one more for every full round of them."""
        self._limit = min(float(self._ceiling), self._limit + 1.0 / max(self._limit, 1.0))
        self._admit()

    def _leave(self, group: str) -> None:
        self._inside[group] -= 1
        if not self._inside[group]:
            del self._inside[group]
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._inside.total() < self.limit:
            chosen = min(self._waiting, key=lambda each: (not each.first, self._inside[each.group], each.number))
            self._waiting.remove(chosen)
            self._inside[chosen.group] += 1
            chosen.turn.set_result(None)

    async def _slow_down(self) -> None:
        now = time.monotonic()
        self._next = max(now, self._next + self._pause)
        if self._next > now:
            await asyncio.sleep(self._next - now)
