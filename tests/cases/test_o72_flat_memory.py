"""O72: the proxy's memory does not grow with calls, nor its sockets with streams that clients drop."""

import asyncio
import contextlib
import os
import statistics
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bench.fake_engine import app
from bench.kills import Forked
from bench.kills import control_headers
from bench.kills import forked
from tests.support.toy_model import make_toy_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BODY_BYTES, CALLS_PER_ROLLOUT, ROLLOUTS, CONNECTIONS, DROPPED = 200_000, 10, 60, 4, 60


@pytest.fixture
async def engine() -> AsyncIterator[str]:
    runner = web.AppRunner(app([70, 71, 72, 2]), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def body(number: int, stream: bool) -> dict[str, Any]:
    """A request of `BODY_BYTES`, nearly all of them in a field that the policy does not read."""
    said = [{"role": "user", "content": f"This is request {number}."}]
    padding = {"user_id": "x" * BODY_BYTES}
    return {"model": "policy-v1", "max_tokens": 64, "stream": stream, "messages": said, "metadata": padding}


async def test_o72_memory_is_flat_and_sockets_return_to_the_base(tmp_path: Path, engine: str) -> None:
    model = make_toy_model(tmp_path / "model")
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        forked(engine, model, tmp_path / "proxy", session) as proxy,
    ):
        memory: list[int] = []
        left = iter(range(ROLLOUTS))

        async def worker() -> None:
            for sample in left:
                await _rollout(proxy, session, sample, tmp_path)
                memory.append(_resident_bytes(proxy))

        await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))
        warm = memory[ROLLOUTS // 4 :]
        first, last = statistics.median(warm[:10]), statistics.median(warm[-10:])
        # Kept bodies alone would be 35 rollouts of 10 x 200 KB between the two: 70 MB, a quarter of the process.
        assert last < first * 1.05, memory
        base = _sockets(proxy)
        await asyncio.gather(*(_drop(proxy, n, tmp_path) for n in range(DROPPED)))
        for _ in range(100):
            if _sockets(proxy) <= base + CONNECTIONS:
                break
            await asyncio.sleep(0.1)
        assert _sockets(proxy) <= base + CONNECTIONS


async def _register(proxy: Forked, session: aiohttp.ClientSession, sample: int, folder: Path) -> str:
    rollout = f"r-e001-t-s{sample:02}-t0"
    asked = {"run": "r", "epoch": 1, "task": "t", "sample": sample, "try_": 0, "harness": "h", "key": "key"}
    asked |= {"calls_path": str(folder / f"{rollout}.parquet"), "limits": {"max_model_len": 1 << 20}}
    async with session.post(f"{proxy.control}/rollouts", json=asked, headers=control_headers()) as answer:
        assert answer.status == 201, await answer.text()
    return rollout


async def _rollout(proxy: Forked, session: aiohttp.ClientSession, sample: int, folder: Path) -> None:
    rollout = await _register(proxy, session, sample, folder)
    url = f"http://127.0.0.1:{proxy.port}/r/{rollout}/v1/messages"
    for number in range(CALLS_PER_ROLLOUT):
        async with session.post(url, json=body(number, number % 2 == 1), headers={"x-api-key": "key"}) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()
    async with session.delete(f"{proxy.control}/rollouts/{rollout}", headers=control_headers()) as answer:
        assert (await answer.json())["complete"]


async def _drop(proxy: Forked, number: int, folder: Path) -> None:
    """Ask for a stream on a connection of its own, and close it before or while the reply comes."""
    async with aiohttp.ClientSession() as session:
        rollout = await _register(proxy, session, ROLLOUTS + number, folder)
        url = f"http://127.0.0.1:{proxy.port}/r/{rollout}/v1/messages"
        asking = asyncio.ensure_future(session.post(url, json=body(0, True), headers={"x-api-key": "key"}))
        await asyncio.wait({asking}, timeout=number % 10 / 10)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


def _resident_bytes(proxy: Forked) -> int:
    pages = Path(f"/proc/{proxy.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _sockets(proxy: Forked) -> int:
    count = 0
    for file in Path(f"/proc/{proxy.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            count += os.readlink(file).startswith("socket:")
    return count
