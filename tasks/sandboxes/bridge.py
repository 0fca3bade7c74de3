"""The host's end of a sandbox's only way out: a unix socket whose bytes go to the proxy."""

import asyncio
import os
from pathlib import Path


class Bridge:
    """Listens at `path` and carries every connection to `proxy` (host, port). `called` is set at the first one."""

    def __init__(self, path: Path, proxy: tuple[str, int]) -> None:
        self.called = asyncio.Event()
        self._path = path
        self._proxy = proxy
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._carry, str(self._path))
        # The sandbox's user is another one; the folder around the socket keeps everybody else out.
        os.chmod(self._path, 0o666)

    async def stop(self) -> None:
        if self._server:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.called.set()
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            out_reader, out_writer = await asyncio.open_connection(*self._proxy)
            try:
                await asyncio.gather(_pump(reader, out_writer), _pump(out_reader, writer))
            finally:
                out_writer.close()
        except OSError:
            # The proxy is away or hung up: closing is what the harness would see of it without a bridge.
            writer.transport.abort()
        except asyncio.CancelledError:
            # Only `stop` cancels; asyncio's own callback would log a handler that ends as cancelled.
            writer.transport.abort()
        finally:
            writer.close()
            self._open.discard(task)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
