"""When a group's slow rollouts are ended; that they are, with a whole record, is in tests/flows/test_overlap.py."""

import asyncio

import pytest

from tasks.deadline import Deadline
from tasks.deadline import late


@pytest.mark.parametrize(("size", "enough"), [(2, 2), (3, 2), (4, 2), (5, 3), (8, 4)])
async def test_half_of_the_group_must_have_a_reward_and_two_at_least(size: int, enough: int) -> None:
    deadline = Deadline(0.0, size)
    async with late(deadline) as overdue:
        for _ in range(enough - 1):
            deadline.ended(0.0)
            deadline.ended(None)  # no verdict: nothing to compare with
            await asyncio.sleep(0.01)
            assert not overdue.done()
        deadline.ended(1.0)
        assert "half of its group was done" in await overdue


async def test_who_began_late_has_the_same_time() -> None:
    deadline = Deadline(0.1, 4)
    for _ in range(2):
        deadline.ended(1.0)
    await asyncio.sleep(0.1)
    async with late(deadline) as overdue:
        await asyncio.sleep(0.05)
        assert not overdue.done()
        await overdue


async def test_without_a_deadline_nobody_is_late_and_nothing_is_left_behind() -> None:
    async with late(None) as overdue:
        await asyncio.sleep(0.01)
        assert not overdue.done()
    async with late(Deadline(1.0, 4)) as overdue:
        pass
    await asyncio.sleep(0)
    assert overdue.cancelled()
