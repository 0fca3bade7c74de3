"""What a rollout may use: each budget ends in a stop that every dialect can read, and none is a refusal."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from tests.proxy_addons.dialects.wire import assemble
from tests.proxy_addons.dialects.wire import decode
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving

DIALECTS = ("anthropic_messages", "openai_responses", "openai_chat", "gemini")


@pytest.fixture(scope="module")
def tokenizer(toy_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(toy_model))


async def ask(client: httpx.AsyncClient, dialect: str, stream: bool, text: str = "go") -> dict[str, Any]:
    """A call and its whole reply, in the shape of the dialect's non-streaming reply."""
    messages = [{"role": "user", "content": text}]
    if dialect == "gemini":
        method = "streamGenerateContent?alt=sse" if stream else "generateContent"
        path = f"/v1beta/models/policy-v1:{method}"
        body: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": text}]}]}
    elif dialect == "openai_responses":
        path, body = "/v1/responses", {"model": "policy-v1", "input": messages, "stream": stream}
    else:
        path = "/v1/messages" if dialect == "anthropic_messages" else "/v1/chat/completions"
        body = {"model": "policy-v1", "messages": messages, "stream": stream, "max_tokens": 500}
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return assemble(dialect, decode([answer.content])) if stream else answer.json()


def said(dialect: str, reply: dict[str, Any]) -> tuple[str, str]:
    """The text of a reply and why it ended."""
    if dialect == "anthropic_messages":
        (block,) = reply["content"]
        return block["text"], reply["stop_reason"]
    if dialect == "openai_responses":
        (item,) = reply["output"]
        assert item["status"] == reply["status"]
        return item["content"][0]["text"], reply["status"]
    if dialect == "gemini":
        (candidate,) = reply["candidates"]
        return candidate["content"]["parts"][0]["text"], candidate["finishReason"]
    (choice,) = reply["choices"]
    return choice["message"]["content"], choice["finish_reason"]


STOP = {"anthropic_messages": "end_turn", "openai_responses": "completed", "openai_chat": "stop", "gemini": "STOP"}
CUT = {"anthropic_messages": "max_tokens", "openai_responses": "incomplete", "openai_chat": "length"}
CUT |= {"gemini": "MAX_TOKENS"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("limits", "finding", "words"),
    [
        ({"max_calls": 1}, "out_of_calls", "budget of 1 model calls is used up"),
        ({"max_total_tokens": 3}, "out_of_tokens", "budget of 3 generated tokens is used up"),
    ],
)
async def test_a_budget_ends_in_a_valid_stop_that_is_not_empty(
    toy_model: Path,
    tokenizer: Any,
    tmp_path: Path,
    limits: dict[str, Any],
    finding: str,
    words: str,
    dialect: str,
    stream: bool,
) -> None:
    ids = tokenizer.encode("ab<|im_end|>")
    assert len(ids) == 3
    async with (
        serving(ScriptedEngine(lambda prompt, n: ids)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register(**limits)
        async with proxy.client(rollout) as client:
            await ask(client, dialect, stream, "one")
            reply = await ask(client, dialect, stream, "two")
        summary, rows = await proxy.end(rollout)
    text, why = said(dialect, reply)
    assert words in text
    assert why == STOP[dialect]
    assert summary["out_of_budget"] == finding
    last = rows[-1]
    assert (last["status"], last["findings"], last["sampled_ids"]) == ("error", [finding], None)
    assert len(engine.asked) == len(rows) - 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_last_tokens_of_a_budget_are_given_and_a_reply_that_they_cut_says_so(
    toy_model: Path, tokenizer: Any, tmp_path: Path, dialect: str, stream: bool
) -> None:
    def script(prompt: list[int], n: int) -> Any:
        given = engine.asked[n]["sampling_params"]["max_tokens"]
        return engine.completion(tokenizer.encode("a") * given, "length")

    async with (
        serving(ScriptedEngine(script)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register(max_tokens=5, max_total_tokens=8)
        async with proxy.client(rollout) as client:
            replies = [await ask(client, dialect, stream, text) for text in ("one", "two")]
        summary, rows = await proxy.end(rollout)
    assert [said(dialect, reply) for reply in replies] == [("aaaaa", CUT[dialect]), ("aaa", CUT[dialect])]
    assert [body["sampling_params"]["max_tokens"] for body in engine.asked] == [5, 3]
    assert [row["findings"] for row in rows] == [["truncated"], ["truncated", "out_of_tokens"]]
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert (summary["out_of_budget"], summary["sampled_tokens"]) == ("out_of_tokens", 8)


async def test_calls_above_the_number_at_once_wait_for_their_turn(
    toy_model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    inside: list[int] = []

    async with (
        serving(ScriptedEngine(lambda prompt, n: tokenizer.encode("ok<|im_end|>"), delay_s=0.2)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register(max_concurrent=2)
        async with proxy.client(rollout) as client:
            calls = [asyncio.create_task(ask(client, "openai_chat", False, f"agent {n}")) for n in range(6)]
            while not all(call.done() for call in calls):
                inside.append(engine.running)
                await asyncio.sleep(0.01)
            replies = await asyncio.gather(*calls)
        _, rows = await proxy.end(rollout)
    assert max(inside) == 2
    assert [said("openai_chat", reply)[0] for reply in replies] == ["ok"] * 6
    assert [row["status"] for row in rows] == ["ok"] * 6


async def test_one_rollouts_calls_hold_up_no_other(toy_model: Path, tokenizer: Any, tmp_path: Path) -> None:
    async with (
        serving(ScriptedEngine(lambda prompt, n: tokenizer.encode("ok<|im_end|>"), delay_s=15)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        busy, idle = await proxy.register("busy", max_concurrent=1), await proxy.register("idle", max_concurrent=1)
        async with proxy.client(busy) as first, proxy.client(idle) as second:
            calls = [asyncio.create_task(ask(first, "openai_chat", False, f"agent {n}")) for n in range(3)]
            while not engine.asked:
                await asyncio.sleep(0.01)
            engine.delay_s = 0.0
            assert said("openai_chat", await ask(second, "openai_chat", False))[0] == "ok"
            assert not any(call.done() for call in calls)
            summary, rows = await proxy.end(busy)
            await asyncio.gather(*calls, return_exceptions=True)
    assert len(engine.asked) == 2
    assert summary["complete"]
    assert {row["status"] for row in rows} == {"error"}


async def test_side_calls_use_up_no_turn_and_have_an_end_of_their_own(
    toy_model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    ids = tokenizer.encode("ab<|im_end|>")
    turn = {
        "model": "policy-v1",
        "messages": [{"role": "user", "content": "go"}],
        "max_tokens": 500,
        "tools": [{"name": "sh", "input_schema": {"type": "object"}}],
    }
    title = {**turn, "tools": []}
    asked = [title, {**turn, "max_tokens": 1}, turn, title, turn, turn]
    async with (
        serving(ScriptedEngine(lambda prompt, n: ids)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register(max_calls=2)
        async with proxy.client(rollout) as client:
            for body in asked:
                assert (await client.post("/v1/messages", json=body)).status_code == 200
        _, rows = await proxy.end(rollout)
    assert ["out_of_calls" in row["findings"] for row in rows] == [False, False, False, True, False, True]
    assert len(engine.asked) == 4
