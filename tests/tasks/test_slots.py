import asyncio

import pytest

from tasks.slots import Slots


async def test_what_is_taken_adds_up_and_no_more_than_there_are() -> None:
    slots, now, most = Slots(2), 0, 0

    async def use() -> None:
        nonlocal now, most
        async with slots.place(1):
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.05)
            now -= 1

    await asyncio.gather(*(use() for _ in range(6)))
    used = slots.used_s
    assert most == 2
    assert used >= 6 * 0.05
    await asyncio.sleep(0.05)
    assert slots.used_s == used


async def test_an_earlier_epoch_goes_first_and_in_it_who_came_first() -> None:
    slots, order = Slots(1), list[tuple[int, int]]()

    async def use(epoch: int, number: int) -> None:
        async with slots.place(epoch):
            order.append((epoch, number))
            await asyncio.sleep(0)

    await asyncio.gather(*(use(epoch, number) for number, epoch in enumerate([2, 2, 1, 2, 1, 1])))
    assert order == [(2, 0), (1, 2), (1, 4), (1, 5), (2, 1), (2, 3)]


@pytest.mark.parametrize("handed_over", [False, True])
async def test_who_is_cancelled_keeps_no_place(handed_over: bool) -> None:
    slots = Slots(1)

    async def use() -> None:
        async with slots.place(1):
            await asyncio.sleep(60)

    waiting = []
    async with slots.place(1):
        waiting = [asyncio.create_task(use()) for _ in range(3)]
        await asyncio.sleep(0)
        if not handed_over:
            waiting[0].cancel()
    waiting[0].cancel()  # before it could run with the place that it has been given by now
    waiting[1].cancel()
    await asyncio.sleep(0.01)
    assert [task.done() for task in waiting] == [True, True, False]
    used = slots.used_s
    await asyncio.sleep(0.01)
    assert slots.used_s > used  # the third has it
    waiting[2].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    used = slots.used_s
    await asyncio.sleep(0.01)
    assert slots.used_s == used
