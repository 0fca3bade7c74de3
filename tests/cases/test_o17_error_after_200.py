"""O17: an error after the headers is an error event of the dialect, and nothing looks like a finished reply."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from proxy_addons.conversation import Problem
from proxy_addons.conversation import ToolCall
from proxy_addons.dialects import anthropic_messages
from proxy_addons.dialects import gemini
from proxy_addons.dialects import openai_chat
from proxy_addons.dialects import openai_responses
from tests.proxy_addons.dialects.wire import DIALECTS
from tests.proxy_addons.dialects.wire import Event
from tests.proxy_addons.dialects.wire import decode
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import make_request
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from tests.support.speakers import be_impatient
from tests.support.speakers import body
from tests.support.speakers import error_message
from tests.support.speakers import has_ended_well
from tests.support.speakers import path
from training.rows import build_rows

PROBLEM = Problem("overloaded", "the policy server is away; it is being restarted")
REPLY = make_reply("text", ToolCall("c1", "f", '{"a": "' + "b" * 3000 + '"}'))


def _broken(name: str, sent: int) -> list[Event]:
    """The events of a stream that fails after `sent` events of the reply."""
    stream = DIALECTS[name].open_stream(make_request(), REPLY.id, REPLY.created)
    parts = [stream.start(), stream.keepalive()]
    events = stream.reply(REPLY)
    parts += [next(events) for _ in range(sent)]
    parts.append(stream.error(PROBLEM))
    return decode(parts)


@pytest.mark.parametrize("sent", [0, 3, 6])
def test_o17_messages(sent: int) -> None:
    name, data = _broken(anthropic_messages.NAME, sent)[-1]
    assert name == "error"
    assert data == {"type": "error", "error": {"type": "overloaded_error", "message": PROBLEM.message}}


@pytest.mark.parametrize("sent", [0, 3, 6])
def test_o17_responses(sent: int) -> None:
    events = _broken(openai_responses.NAME, sent)
    name, data = events[-1]
    assert name == data["type"] == "response.failed"
    assert data["response"]["status"] == "failed"
    assert data["response"]["error"] == {"code": "server_error", "message": PROBLEM.message}
    assert data["response"]["id"] == events[0][1]["response"]["id"]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))


@pytest.mark.parametrize("sent", [0, 2, 4])
def test_o17_chat(sent: int) -> None:
    events = _broken(openai_chat.NAME, sent)
    assert events[-1][1]["error"]["message"] == PROBLEM.message
    assert all(data != "[DONE]" for _, data in events)
    assert all(c["finish_reason"] is None for _, data in events for c in data.get("choices", ()))


@pytest.mark.parametrize("sent", [0, 1])
def test_o17_gemini(sent: int) -> None:
    events = _broken(gemini.NAME, sent)
    assert events[-1][1]["error"] == {"code": 503, "message": PROBLEM.message, "status": "UNAVAILABLE"}
    assert all("finishReason" not in c for _, data in events for c in data.get("candidates", ()))


@pytest.mark.parametrize("kind", Problem.STATUS)
@pytest.mark.parametrize("name", DIALECTS)
def test_o17_every_kind_has_a_spelling(name: str, kind: str) -> None:
    error = DIALECTS[name].error_json(Problem(kind, "why and what to do"))["error"]
    assert error["message"] == "why and what to do"
    assert isinstance(error["status" if name == "gemini" else "type"], str)


@pytest.mark.parametrize("name", DIALECTS)
async def test_o17_an_engine_that_dies_while_a_stream_is_open(
    name: str, toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_impatient(monkeypatch)
    async with (
        serving(ScriptedEngine(lambda prompt, n: web.Response(status=500), delay_s=0.8)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            answer = await client.post(path(name, True), json=body(name, ["go"], stream=True))
        summary, rows = await proxy.end(rollout)
    assert answer.status_code == 200
    events = decode([answer.content])
    assert len(events) > 2, "keep-alives, then the error"
    assert error_message(name, events[-1]) == "the policy server is away"
    assert not has_ended_well(name, events)
    assert summary["engine_failure"]
    assert [(row["status"], row["sampled_ids"]) for row in rows] == [("error", None)]
    assert build_rows(rows, max_row_tokens=10_000)[0] == []


@pytest.mark.parametrize("name", DIALECTS)
async def test_o17_a_rollout_that_ends_while_a_stream_is_open(
    name: str, toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness is told by an error event, which no client takes for the end of a reply."""
    be_impatient(monkeypatch)
    got: list[bytes] = []
    async with (
        serving(ScriptedEngine(lambda prompt, n: [9], delay_s=15)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with (
            proxy.client(rollout) as client,
            client.stream("POST", path(name, True), json=body(name, ["go"], stream=True)) as answer,
        ):
            async for chunk in answer.aiter_bytes():
                if not got:
                    ending = asyncio.ensure_future(proxy.end(rollout))
                got.append(chunk)
        summary, rows = await ending
    assert not has_ended_well(name, decode(got))
    assert b"the rollout has ended" in b"".join(got)
    assert summary["complete"]
    assert [row["status"] for row in rows] == ["error"]
    assert engine.cancelled == 1
