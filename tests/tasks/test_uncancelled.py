"""Work that a cancellation waits for."""

import asyncio
import threading

import pytest

from tasks.uncancelled import in_thread
from tasks.uncancelled import to_the_end


async def test_a_thread_that_writes_has_ended_when_its_caller_is_cancelled() -> None:
    begun, go_on, written = threading.Event(), threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        go_on.wait(10)
        written.set()

    caller = asyncio.create_task(in_thread(write))
    await asyncio.to_thread(begun.wait, 10)
    caller.cancel()
    await asyncio.sleep(0.05)
    caller.cancel()
    await asyncio.sleep(0.05)
    assert not caller.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert written.is_set()


async def test_a_cancellation_is_passed_on_when_the_work_ends_in_the_same_moment() -> None:
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await ended

    caller = asyncio.create_task(to_the_end(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ended.set_result(None)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_the_result_and_the_error_are_the_works() -> None:
    assert await in_thread(lambda number: number + 1, 1) == 2
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)
