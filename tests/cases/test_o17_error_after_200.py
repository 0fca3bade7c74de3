"""O17: an error after the headers is an error event of the dialect, and nothing looks like a finished reply."""

import pytest

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
