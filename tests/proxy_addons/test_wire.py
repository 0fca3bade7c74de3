"""Real sockets, on both event loops: the tests' own and the proxy's."""

import asyncio
import time
from collections.abc import AsyncIterator
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from proxy_addons import wire
from proxy_addons.wire import Connections

PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n"

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


class Server:
    """Answers each request with the next of `answers`, after which it may hang up; `asked` are the requests of each
    connection."""

    def __init__(self, *answers: bytes | None, hang_up: bool = False) -> None:
        self.asked: list[list[bytes]] = []
        self.ended = asyncio.Event()
        self._answers = list(answers)
        self._hang_up = hang_up

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own: list[bytes] = []
        self.asked.append(own)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                own.append(head.split(b"\r\n")[0] + b" " + await reader.readexactly(length))
                answer = self._answers.pop(0)
                for byte in answer or b"":  # in the smallest pieces that a network may make of it
                    writer.write(bytes([byte]))
                    await writer.drain()
                if self._hang_up:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended.set()
        finally:
            writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_a_connection_is_kept_for_the_next_call(run: Run) -> None:
    async def main() -> None:
        server = Server(PLAIN, CHUNKED, b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n")
        async with server.running() as url, Connections() as connections:
            assert await connections.ask("POST", f"{url}/a", b"{}") == (200, b"ok")
            assert await connections.ask("GET", f"{url}/b?c") == (200, b"ok")
            assert await connections.ask("POST", url, b"[1]") == (503, b"")
        assert server.asked == [[b"POST /a HTTP/1.1 {}", b"GET /b?c HTTP/1.1 ", b"POST / HTTP/1.1 [1]"]]

    run(main())


def test_calls_at_once_have_a_connection_each(run: Run) -> None:
    async def main() -> None:
        server = Server(PLAIN, PLAIN, PLAIN)
        async with server.running() as url, Connections() as connections:
            answers = await asyncio.gather(*(connections.ask("POST", url, b"1") for _ in range(3)))
        assert answers == [(200, b"ok")] * 3
        assert len(server.asked) == 3

    run(main())


def test_one_that_idled_or_that_the_server_closes_is_not_used_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        closing = PLAIN.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)
        server = Server(closing, PLAIN, PLAIN)
        async with server.running() as url, Connections() as connections:
            await connections.ask("POST", url)
            monkeypatch.setattr(wire, "KEEPALIVE_S", 0.0)
            await connections.ask("POST", url)
            await asyncio.sleep(0.01)
            assert [*connections._idle.values()] == [[]], "one that idles stays open"
            await connections.ask("POST", url)
        assert [len(own) for own in server.asked] == [1, 1, 1]

    run(main())


def test_one_that_idled_while_the_loop_was_busy_is_not_used_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        server = Server(PLAIN, PLAIN)
        async with server.running() as url, Connections() as connections:
            monkeypatch.setattr(wire, "KEEPALIVE_S", 0.01)
            await connections.ask("POST", url)
            time.sleep(0.02)  # nothing is retired meanwhile, and no server's hanging up is noticed
            await connections.ask("POST", url)
        assert [len(own) for own in server.asked] == [1, 1]

    run(main())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "broke off before its answer was whole"),
        (PLAIN[:-1], "broke off before its answer was whole"),
        (CHUNKED[:-5], "broke off before its answer was whole"),
        (b"SSH-2.0-OpenSSH\r\n", "did not answer in HTTP"),
    ],
)
def test_an_answer_that_is_not_whole_is_none(run: Run, answer: bytes, says: str) -> None:
    async def main() -> None:
        async with Server(answer, hang_up=True).running() as url, Connections() as connections:
            with pytest.raises(ConnectionError, match=says):
                await connections.ask("POST", url)

    run(main())


def test_nobody_listening_is_an_error_of_the_system(run: Run) -> None:
    async def main() -> None:
        async with Server().running() as url:
            pass
        async with Connections() as connections:
            with pytest.raises(OSError, match=r"111|refused"):
                await connections.ask("POST", url)

    run(main())


def test_to_cancel_a_call_hangs_up(run: Run) -> None:
    async def main() -> None:
        server = Server(None)
        async with server.running() as url, Connections() as connections:
            asking: Awaitable[Any] = connections.ask("POST", url)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asking, 0.2)
            await asyncio.wait_for(server.ended.wait(), 5)

    run(main())
