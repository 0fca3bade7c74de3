"""O72, the half of the sockets: clients that drop their streams leave no connection open behind them."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import speakers
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving


def open_sockets() -> int:
    """Of this process: the client, mitmproxy, the gateway and the engine all live in it."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            continue  # closed since it was listed; the listing's own is always one of these
    return sum(link.startswith("socket:") for link in links)


@pytest.mark.parametrize("name", speakers.NAMES)
async def test_o72_dropped_streams_return_their_sockets(
    toy_model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    speakers.be_impatient(monkeypatch, grace_s=0.05, keepalive_s=0.05)

    async def drop() -> None:
        """A client with a connection of its own, which leaves after the first sign of life."""
        async with (
            proxy.client(rollout) as client,
            client.stream("POST", speakers.path(name, True), json=speakers.body(name, ["go"], stream=True)) as answer,
        ):
            async for _ in answer.aiter_bytes():
                return

    async with (
        serving(ScriptedEngine(lambda prompt, n: tokenizer.encode("Hi.<|im_end|>"))) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register(max_calls=100)
        async with proxy.client(rollout) as client:
            await speakers.ask(client, name, ["go"])
        base = open_sockets()
        engine.delay_s = 20
        for _ in range(3):
            await asyncio.gather(*(drop() for _ in range(10)))
        for _ in range(400):
            if open_sockets() <= base:
                break
            await asyncio.sleep(0.02)
        assert open_sockets() <= base
        engine.delay_s = 0
        async with proxy.client(rollout) as client:
            assert speakers.text(name, await speakers.ask(client, name, ["go"])) == "Hi."
        summary, rows = await proxy.end(rollout)
    assert summary["complete"]
    assert [row["status"] for row in rows] == ["abandoned", *["error"] * 30, "ok"]
