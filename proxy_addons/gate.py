"""The gate before the engine, closed while new weights are loaded."""

import asyncio


class Gate:
    """Lets calls through to the engine; closes for a weight update and waits until it is empty."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    async def __aenter__(self) -> None:
        while not self._open.is_set():  # closed again before we woke up: wait again
            await self._open.wait()
        self._inside += 1
        self._empty.clear()

    async def __aexit__(self, *_: object) -> None:
        self._inside -= 1
        if not self._inside:
            self._empty.set()

    async def close(self) -> None:
        """Hold new calls and wait for those inside."""
        self._open.clear()
        await self._empty.wait()

    def open(self) -> None:
        """Let held calls go on."""
        self._open.set()
