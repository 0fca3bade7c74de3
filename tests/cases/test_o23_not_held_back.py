"""O23: what the gateway sends reaches the client at once; mitmproxy does not hold it until the stream ends."""

import asyncio
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.proxy_addons.dialects.wire import assemble
from tests.proxy_addons.dialects.wire import decode
from tests.support import speakers
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving


@dataclass
class WaitingEngine(ScriptedEngine):
    """Says nothing before `let_go` is set."""

    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        await self.let_go.wait()
        return await super()._generate(http)


@pytest.mark.parametrize("name", speakers.NAMES)
async def test_o23_events_arrive_while_the_reply_is_still_to_come(
    toy_model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    speakers.be_impatient(monkeypatch)
    got: list[bytes] = []
    early = 0
    waiting = WaitingEngine(lambda prompt, n: tokenizer.encode("Hi.<|im_end|>"))
    async with (
        serving(waiting) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with (
            proxy.client(rollout) as client,
            client.stream("POST", speakers.path(name, True), json=speakers.body(name, ["go"], stream=True)) as answer,
        ):
            # The engine waits for the client to have seen five pieces: held back, they would never come.
            async for chunk in answer.aiter_bytes():
                got.append(chunk)
                if len(got) == 5 and not waiting.let_go.is_set():
                    early = len(decode(got))
                    waiting.let_go.set()
        summary, rows = await proxy.end(rollout)
    assert early >= 5
    assert speakers.text(name, assemble(name, decode(got))) == "Hi."
    assert summary["complete"]
    assert [(row["status"], row["findings"]) for row in rows] == [("ok", [])]
