"""Whose turn it is, and how many there may be."""

import asyncio

import pytest

from tasks.kube.gate import Gate


class Crowd:
    """Tasks that hold a place of `gate` until they are let go, in the order they got it."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.inside: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._go: dict[str, asyncio.Event] = {}

    async def enter(self, name: str, group: str, first: bool = False) -> None:
        self._go[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._stay(name, group, first))
        await asyncio.sleep(0.002)

    async def leave(self, name: str) -> None:
        self._go[name].set()
        await self._tasks[name]
        await asyncio.sleep(0.002)

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.gather(self._tasks[name], return_exceptions=True)
        await asyncio.sleep(0.002)

    async def _stay(self, name: str, group: str, first: bool) -> None:
        async with self.gate.slot(group, first):
            self.inside.append(name)
            await self._go[name].wait()


@pytest.fixture
def crowd() -> Crowd:
    return Crowd(Gate(2, 1e6))


async def test_retries_first_then_the_group_with_the_fewest(crowd: Crowd) -> None:
    await crowd.enter("a0", "a")
    await crowd.enter("a1", "a")
    for name, group, first in (("a2", "a", False), ("b0", "b", False), ("c0", "c", True)):
        await crowd.enter(name, group, first)
    assert crowd.inside == ["a0", "a1"]
    for name in ("a0", "c0", "b0"):
        await crowd.leave(name)
    assert crowd.inside == ["a0", "a1", "c0", "b0", "a2"]


async def test_push_back_lets_fewer_in_and_success_more_again() -> None:
    crowd = Crowd(Gate(10, 1e6))
    for n in range(10):
        await crowd.enter(str(n), "a")
    crowd.gate.push_back()
    crowd.gate.push_back()
    assert crowd.gate.limit == 7, "a burst of refusals is one sign"
    await crowd.enter("late", "a")
    for n in range(3):
        await crowd.leave(str(n))
    assert "late" not in crowd.inside
    await crowd.leave("3")
    assert "late" in crowd.inside
    for _ in range(100):
        crowd.gate.went_well()
    assert crowd.gate.limit == 10


async def test_who_gives_up_waiting_takes_no_place(crowd: Crowd) -> None:
    for name in ("a0", "a1", "a2", "a3"):
        await crowd.enter(name, "a")
    await crowd.cancel("a2")
    await crowd.cancel("a0")
    assert crowd.inside == ["a0", "a1", "a3"]
    await crowd.leave("a1")
    await crowd.leave("a3")
    assert not crowd.gate._inside


async def test_the_limit_never_falls_to_nothing() -> None:
    gate = Gate(1, 1e6)
    async with gate.slot("a", False):
        gate.push_back()
    assert gate.limit == 1


async def test_one_enters_after_the_other() -> None:
    gate, clock = Gate(100, 50), asyncio.get_running_loop().time
    start = clock()

    async def enter() -> None:
        async with gate.slot("a", False):
            pass

    await asyncio.gather(*(enter() for _ in range(11)))
    assert clock() - start >= 10 / 50
