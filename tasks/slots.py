"""The places that a run's rollouts share: earlier epochs first, and it is known how much they were used."""

import asyncio
import heapq
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """`count` places. A free one goes to the lowest turn (the epoch) that waits, and in it to who came first, so that
    rollouts of a later epoch take only what those of an earlier one leave."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._taken = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = itertools.count()
        self._used_s = 0.0
        self._since = time.monotonic()

    @property
    def used_s(self) -> float:
        """Seconds for which a place was taken, of all places together, until now."""
        now = time.monotonic()
        self._used_s += self._taken * (now - self._since)
        self._since = now
        return self._used_s

    @asynccontextmanager
    async def place(self, turn: int) -> AsyncIterator[None]:
        """Wait for a place, and hold it for the time of the block."""
        if self._taken < self.count:  # then nobody waits
            self._change(1)
        else:
            handed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (turn, next(self._number), handed))
            try:
                await handed
            except asyncio.CancelledError:
                if not handed.cancelled():  # handed over just before we were cancelled
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            handed = heapq.heappop(self._waiting)[2]
            if not handed.done():
                handed.set_result(None)
                return
        self._change(-1)

    def _change(self, by: int) -> None:
        _ = self.used_s
        self._taken += by
