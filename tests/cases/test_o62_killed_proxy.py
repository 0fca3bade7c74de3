"""O62: what a client got the last byte of is in the record of a killed proxy, and no cut rollout looks whole."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bench.fake_engine import app
from bench.kills import Client
from bench.kills import Found
from bench.kills import rounds
from proxy_addons.identity import Rollout
from proxy_addons.records import to_json
from tests.support.toy_model import make_toy_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SAMPLED = [70, 71, 72, 2]


@pytest.fixture
async def engine() -> AsyncIterator[str]:
    runner = web.AppRunner(app(SAMPLED), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_o62_killed_right_after_the_last_byte_100_times(tmp_path: Path, engine: str) -> None:
    found = await kill(tmp_path, engine, 100, after_last_byte=True)
    assert found.problems == []
    assert found.kills == 100
    assert found.acknowledged > 100
    assert found.cut > 50


async def test_o62_killed_at_random_moments_20_times(tmp_path: Path, engine: str) -> None:
    found = await kill(tmp_path, engine, 20, after_last_byte=False)
    assert found.problems == []
    assert found.kills == 20
    assert found.calls_open > 0


async def kill(folder: Path, engine: str, count: int, after_last_byte: bool) -> Found:
    model = make_toy_model(folder / "model")
    return await rounds(
        engine, model, folder, count, SAMPLED, after_last_byte=after_last_byte, stop_at=time.monotonic() + 270
    )


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([("intent", 0)], "acknowledged calls [0, 1] are lost"),
        ([("intent", 0), ("terminal", 0)], "acknowledged calls [1] are lost"),
        ([("intent", 0), ("terminal", 0), ("end", 1)], "looks whole after 1 calls of 3, and was never ended"),
    ],
)
def test_o62_the_check_finds_what_it_looks_for(tmp_path: Path, lines: list[tuple[str, int]], problem: str) -> None:
    fields: dict[str, dict[str, Any]] = {
        "intent": {"parent_call": None, "whole_prefix": False, "request_key": "k", "messages_delta": []},
        "terminal": {"status": "ok", "sampled_ids": SAMPLED},
        "end": {},
    }
    client = Client(Rollout("soak", 0, "t", 0), 3, tmp_path, acknowledged=2)
    text = "".join(to_json({"kind": k, "calls" if k == "end" else "call": n, **fields[k]}) + "\n" for k, n in lines)
    (tmp_path / f".{client.rollout.id}.ledger").write_text(text)
    found = Found()
    found.add([client], SAMPLED)
    assert f"{client.rollout.id}: {problem}" in found.problems
