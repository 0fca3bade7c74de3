"""O19: while the engine is silent the stream is not, in a way that clients count; one generation, one turn."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.proxy_addons.dialects.wire import assemble
from tests.proxy_addons.dialects.wire import decode
from tests.support import speakers
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving


@pytest.mark.parametrize("name", speakers.NAMES)
async def test_o19_a_client_with_a_short_patience_needs_no_second_try(
    toy_model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    speakers.be_impatient(monkeypatch)
    async with (
        serving(ScriptedEngine(lambda prompt, n: tokenizer.encode("Hi.<|im_end|>"), delay_s=4)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            # Less than the engine's silence, before the headers and between two events.
            body = speakers.body(name, ["go"], stream=True)
            answer = await client.post(speakers.path(name, True), json=body, timeout=2)
        _, rows = await proxy.end(rollout)
    events = decode([answer.content])
    assert b"\n:" not in b"\n" + answer.content, "comment lines do not reset the clients' clocks"
    assert len(events) > 5
    assert speakers.text(name, assemble(name, events)) == "Hi."
    assert len(engine.asked) == 1
    assert [(row["status"], row["findings"]) for row in rows] == [("ok", [])]


@pytest.mark.parametrize("name", speakers.NAMES)
async def test_o19_a_client_that_gives_up_and_asks_again_has_one_turn(
    toy_model: Path, tokenizer: Any, tmp_path: Path, name: str
) -> None:
    """Without a stream there is nothing to keep alive: the answer is held, and a client that leaves stops its call."""
    async with (
        serving(ScriptedEngine(lambda prompt, n: tokenizer.encode("Hi.<|im_end|>"), delay_s=8)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(speakers.path(name), json=speakers.body(name, ["go"]), timeout=0.5)
            while not engine.cancelled:
                await asyncio.sleep(0.02)
            engine.delay_s = 0
            answer = await speakers.ask(client, name, ["go"])
        summary, rows = await proxy.end(rollout)
    assert speakers.text(name, answer) == "Hi."
    assert [row["status"] for row in rows] == ["error", "ok"]
    assert rows[0]["findings"] == ["harness_went_away"]
    assert (summary["answered"], summary["chains"]) == (1, 1)
