"""HTTP/1.1 to the policy servers: connections that are kept, and no more of a client than a call needs.

With aiohttp's client a call's trip to the engine took 0.27 to 0.41 ms of CPU, with httptools 0.11 to 0.18.
"""

import asyncio
import time
from functools import lru_cache
from typing import Self
from typing import cast
from urllib.parse import SplitResult
from urllib.parse import urlsplit

from httptools import HttpParserError
from httptools import HttpResponseParser

CONNECT_S = 10.0
"""A server that takes longer to accept a connection is away."""
KEEPALIVE_S = 3.0
"""How long a connection may idle: vLLM closes one after 5 s, and a request sent just then is lost."""


class Connections:
    """For any number of servers, in one event loop, to be closed as a context. As many connections to each server as
    there are calls at once."""

    def __init__(self) -> None:
        self._idle: dict[str, list[_Connection]] = {}

    async def ask(self, method: str, url: str, data: bytes = b"") -> tuple[int, bytes]:
        """The status and body of the answer to `data`, JSON. Raises OSError if no whole answer comes.

        To cancel it closes the connection, so that the server can stop working on it.
        """
        to = _split(url)
        idle = self._idle.setdefault(f"{to.scheme}://{to.netloc}", [])
        connection = _fresh(idle) or await _connect(to)
        path = f"{to.path or '/'}?{to.query}" if to.query else to.path or "/"
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: {to.netloc}\r\naccept: */*\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        try:
            answer = await connection.ask(head.encode(), data)
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            idle.append(connection)
            connection.fresh_until = time.monotonic() + KEEPALIVE_S
            connection.retiring = asyncio.get_running_loop().call_later(KEEPALIVE_S, _retire, connection, idle)
        else:
            connection.close()
        return answer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for idle in self._idle.values():
            while connection := _fresh(idle):
                connection.close()


class _Connection(asyncio.Protocol):
    """One connection; `ask` one thing at a time."""

    def __init__(self) -> None:
        self.retiring: asyncio.TimerHandle | None = None
        self.fresh_until = 0.0
        self.reusable = True
        self._parser = HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def ask(self, head: bytes, data: bytes) -> "asyncio.Future[tuple[int, bytes]]":
        self._answer = asyncio.get_running_loop().create_future()
        # Never an empty piece: asyncio's transport of 3.12 keeps it for ever, and then never ends.
        self._transport.writelines([head, data] if data else [head])
        return self._answer

    def close(self) -> None:
        self._fail("was closed")
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._fail(f"did not answer in HTTP: {error}")
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"broke off before its answer was whole{f': {error}' if error else ''}")

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        body, status = b"".join(self._pieces), self._parser.get_status_code()
        self._pieces.clear()
        self.reusable = self.reusable and self._parser.should_keep_alive()
        if status < 200:  # the answer is still to come
            return
        if self._answer is None or self._answer.done():  # an answer to nothing
            self.reusable = False
            self._transport.abort()
            return
        self._answer.set_result((status, body))

    def _fail(self, why: str) -> None:
        self.reusable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the server {why}"))


@lru_cache
def _split(url: str) -> SplitResult:
    return urlsplit(url)


def _fresh(idle: list[_Connection]) -> _Connection | None:
    """The connection that was used last, if the server has not closed it."""
    while idle:
        connection = idle.pop()
        if connection.retiring:
            connection.retiring.cancel()
        # By the clock too: a loop that was busy has neither retired it nor seen the server hang up.
        if connection.reusable and time.monotonic() < connection.fresh_until:
            return connection
        connection.close()
    return None


def _retire(connection: _Connection, idle: list[_Connection]) -> None:
    idle.remove(connection)
    connection.close()


async def _connect(to: SplitResult) -> _Connection:
    ssl = True if to.scheme == "https" else None
    host, port = to.hostname or "", to.port or (443 if ssl else 80)
    async with asyncio.timeout(CONNECT_S):
        _, connection = await asyncio.get_running_loop().create_connection(_Connection, host, port, ssl=ssl)
    return connection
