"""Pause → drain → new weights → resume, as harnesses and the orchestrator see it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from proxy_addons import __main__ as process
from proxy_addons.gate import Gate
from proxy_addons.gateway import Gateway
from tests.proxy_addons.dialects.wire import Event
from tests.proxy_addons.dialects.wire import assemble
from tests.proxy_addons.dialects.wire import decode
from tests.support.recording import Recording
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving

MESSAGES = [{"role": "user", "content": "go"}]
STREAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "anthropic_messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}),
    "openai_responses": ("/v1/responses", {"input": MESSAGES}),
    "openai_chat": ("/v1/chat/completions", {"messages": MESSAGES}),
    "gemini": (
        "/v1beta/models/policy-v1:streamGenerateContent?alt=sse",
        {"contents": [{"role": "user", "parts": [{"text": "go"}]}]},
    ),
}
CHAT = {"model": "policy-v1", "messages": MESSAGES}


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grace period and keep-alives that a test can wait for."""
    monkeypatch.setattr(process, "Gateway", partial(Gateway, grace_s=0.1, keepalive_s=0.1))


@pytest.fixture(scope="module")
def ok(toy_model: Path) -> list[int]:
    ids: list[int] = AutoTokenizer.from_pretrained(str(toy_model)).encode("ok<|im_end|>")
    return ids


@contextlib.asynccontextmanager
async def behind(toy_model: Path, folder: Path, *engines: ScriptedEngine) -> AsyncIterator[Recording]:
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(serving(engine))
        yield await stack.enter_async_context(
            recording(toy_model, engines[0].url, folder, *(e.url for e in engines[1:]))
        )


def is_alive(dialect: str, event: Event) -> bool:
    """Whether an event is what the dialect's harnesses take for a sign of life (`wire/failure-summary.md`)."""
    name, data = event
    return {
        "anthropic_messages": name == "ping",
        "openai_responses": name == "response.in_progress",
        "openai_chat": data != "[DONE]" and data.get("choices") == [] and data.get("usage") is None,
        "gemini": data == {"candidates": []},
    }[dialect]


@pytest.mark.parametrize("dialect", STREAMED)
async def test_a_call_that_comes_while_paused_is_held_by_keepalives_and_then_answered(
    toy_model: Path, ok: list[int], tmp_path: Path, dialect: str
) -> None:
    path, body = STREAMED[dialect]
    engine = ScriptedEngine(lambda prompt, n: ok)
    async with behind(toy_model, tmp_path, engine) as proxy:
        rollout = await proxy.register()
        await proxy.control.post("/pause")
        async with proxy.client(rollout) as client:
            held = asyncio.create_task(client.post(path, json={"model": "policy-v1", "stream": True, **body}))
            await asyncio.sleep(0.6)
            assert (held.done(), engine.asked) == (False, [])
            await proxy.control.post("/resume")
            events = decode([(await held).content])
        _, rows = await proxy.end(rollout)
    assert sum(is_alive(dialect, event) for event in events) >= 3
    assert "ok" in str(
        assemble(dialect, [e for e in events if dialect == "openai_responses" or not is_alive(dialect, e)])
    )
    assert [(row["status"], row["findings"]) for row in rows] == [("ok", [])]


@pytest.mark.parametrize("dialect", STREAMED)
async def test_a_call_that_waits_for_its_turn_is_held_by_keepalives_too(
    toy_model: Path, ok: list[int], tmp_path: Path, dialect: str
) -> None:
    path, body = STREAMED[dialect]
    engine = ScriptedEngine(lambda prompt, n: ok, delay_s=0.6)
    async with behind(toy_model, tmp_path, engine) as proxy:
        rollout = await proxy.register(max_concurrent=1)
        async with proxy.client(rollout) as client:
            first = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
            while not engine.asked:
                await asyncio.sleep(0.01)
            waited = await client.post(path, json={"model": "policy-v1", "stream": True, **body})
            assert (await first).status_code == 200
        _, rows = await proxy.end(rollout)
    events = decode([waited.content])
    assert sum(is_alive(dialect, event) for event in events) >= 3
    assert "ok" in waited.text
    assert [row["status"] for row in rows][1:] == ["ok"]


async def test_pause_returns_when_the_calls_under_way_have_ended(
    toy_model: Path, ok: list[int], tmp_path: Path
) -> None:
    engine = ScriptedEngine(lambda prompt, n: ok, delay_s=0.6)
    async with behind(toy_model, tmp_path, engine) as proxy:
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            under_way = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
            while not engine.asked:
                await asyncio.sleep(0.01)
            pausing = asyncio.create_task(proxy.control.post("/pause"))
            await asyncio.sleep(0.2)
            late = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
            await asyncio.sleep(0.1)
            assert (pausing.done(), engine.running) == (False, 1)
            await pausing
            assert engine.running == 0
            assert (await under_way).status_code == 200
            engine.version = 1
            assert len(engine.asked) == 1
            await proxy.control.post("/resume")
            assert (await late).status_code == 200
        _, rows = await proxy.end(rollout)
    assert [(row["weight_version"], row["weight_version_last"]) for row in rows] == [(0, 0), (1, 1)]


async def test_a_rollout_that_ends_while_paused_ends_at_once_and_whole(
    toy_model: Path, ok: list[int], tmp_path: Path
) -> None:
    engine = ScriptedEngine(lambda prompt, n: ok)
    async with behind(toy_model, tmp_path, engine) as proxy:
        ended, other = await proxy.register("ended"), await proxy.register("other")
        async with proxy.client(ended) as client:
            await client.post("/v1/chat/completions", json=CHAT)
            await proxy.control.post("/pause")
            held = asyncio.create_task(client.post("/v1/chat/completions", json={**CHAT, "stream": True}))
            await asyncio.sleep(0.3)
            summary, rows = await asyncio.wait_for(proxy.end(ended), 5)
            with contextlib.suppress(httpx.HTTPError):
                await held
        await proxy.control.post("/resume")
        async with proxy.client(other) as client:
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        await proxy.end(other)
    assert (summary["complete"], summary["calls"], summary["answered"]) == (True, 2, 1)
    assert [row["status"] for row in rows] == ["ok", "error"]
    assert len(engine.asked) == 2


async def test_a_harness_that_leaves_while_paused_leaves_nothing_behind(
    toy_model: Path, ok: list[int], tmp_path: Path
) -> None:
    engine = ScriptedEngine(lambda prompt, n: ok)
    async with behind(toy_model, tmp_path, engine) as proxy:
        rollout = await proxy.register(max_concurrent=1)
        await proxy.control.post("/pause")
        async with proxy.client(rollout) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/v1/chat/completions", json=CHAT, timeout=0.3)
            await proxy.control.post("/resume")
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        _, rows = await proxy.end(rollout)
    assert len(engine.asked) == 1
    assert [(row["status"], row["findings"]) for row in rows] == [("error", ["harness_went_away"]), ("ok", [])]


async def test_after_new_weights_only_engines_that_show_them_are_asked(
    toy_model: Path, ok: list[int], tmp_path: Path
) -> None:
    engines = [ScriptedEngine(lambda prompt, n: ok) for _ in range(2)]
    async with behind(toy_model, tmp_path, *engines) as proxy:
        await proxy.control.post("/pause")
        engines[0].version = 5  # the other one keeps its old weights
        answer = await proxy.control.post("/resume", params={"weight_version": 5})
        assert list(answer.json()["left_out"]) == [engines[1].url]
        asked = len(engines[1].asked)
        for number in range(6):
            rollout = await proxy.register(f"t{number}")
            async with proxy.client(rollout) as client:
                assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
            _, rows = await proxy.end(rollout)
            assert [row["weight_version"] for row in rows] == [5]
    assert all(len(body["token_ids"]) == len(engines[1].asked[0]["token_ids"]) for body in engines[1].asked[asked:])


async def test_weights_that_no_engine_shows_keep_the_calls_held(toy_model: Path, ok: list[int], tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda prompt, n: ok)
    async with behind(toy_model, tmp_path, engine) as proxy:
        rollout = await proxy.register()
        await proxy.control.post("/pause")
        answer = await proxy.control.post("/resume", params={"weight_version": 1})
        assert (answer.status_code, "serves weights 0, not 1" in answer.json()["error"]) == (502, True)
        async with proxy.client(rollout) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/v1/chat/completions", json=CHAT, timeout=0.3)
        await proxy.end(rollout)
    assert len(engine.asked) == 1  # the sign of life that was asked for


async def test_a_gate_closed_again_before_a_held_call_wakes_up_holds_it() -> None:
    gate = Gate()
    await gate.close()

    async def call() -> None:
        async with gate:
            pass

    held = asyncio.create_task(call())
    await asyncio.sleep(0)
    gate.open()
    await gate.close()  # nobody is inside, so weights may be replaced from here on
    await asyncio.sleep(0.01)
    assert not held.done()
    gate.open()
    await held
