"""What a cancellation waits for. A thread cannot be cancelled: one that writes files would go on under whoever comes
next."""

import asyncio
from collections.abc import Callable
from collections.abc import Coroutine
from typing import Any
from typing import TypeVar

T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` whatever cancels the caller meanwhile; the cancellation is passed on afterwards."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    result = task.result()
    if cancelled:
        raise asyncio.CancelledError
    return result


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """As `asyncio.to_thread`, for what writes files."""
    return await to_the_end(asyncio.to_thread(function, *arguments))
