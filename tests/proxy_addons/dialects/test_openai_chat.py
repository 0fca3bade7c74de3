import json
from typing import Any

import httpx
import pytest

from proxy_addons.conversation import Message
from proxy_addons.conversation import Problem
from proxy_addons.conversation import ToolCall
from proxy_addons.dialects import Route
from proxy_addons.dialects import find_route
from proxy_addons.dialects import openai_chat
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import stream_bytes

USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "shell", "description": "run", "parameters": {"type": "object"}}


def test_routes() -> None:
    assert find_route("/v1/chat/completions") == Route(openai_chat, "generate")
    assert openai_chat.count_json(7) == {"input_tokens": 7}


def test_every_field_is_read() -> None:
    body = {
        "model": "m",
        "messages": [{"role": "developer", "content": "D"}, USER],
        "tools": [{"type": "function", "function": FUNCTION}, {"type": "web_search"}],
        "max_tokens": 100,
        "temperature": 0,
        "top_p": 0.9,
        "stop": "###",
        "stream": True,
        "n": 1,
    }
    request = openai_chat.parse(body, {})
    assert request.messages == (Message("system", "D"), Message("user", "hi"))
    assert [(t.name, t.description, t.parameters) for t in request.tools] == [("shell", "run", {"type": "object"})]
    assert (request.max_tokens, request.temperature, request.top_p, request.stop) == (100, 0.0, 0.9, ("###",))
    assert request.stream
    assert not request.include_usage
    assert request.notes == ("hosted_tool_dropped:web_search",)


def test_the_newer_limit_wins() -> None:
    body = {"messages": [USER], "max_tokens": 100, "max_completion_tokens": 50}
    assert openai_chat.parse(body, {}).max_tokens == 50


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_assistant_turn(field: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "shell", "arguments": "{}"}}
    turn = {"role": "assistant", "content": [{"type": "text", "text": "x"}], field: "hm", "tool_calls": [call]}
    (message,) = openai_chat.parse({"messages": [turn]}, {}).messages
    assert message == Message("assistant", "x", "hm", (ToolCall("a", "shell", "{}"),))


@pytest.mark.parametrize("calls", [None, []])
def test_no_calls_however_spelled(calls: Any) -> None:
    turn = {"role": "assistant", "content": "x", "tool_calls": calls}
    assert openai_chat.parse({"messages": [turn]}, {}).messages == (Message("assistant", "x"),)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "messages"),
        ({"messages": [USER], "n": 2}, "n"),
        ({"messages": [USER, {"role": "ctx"}]}, "messages[1].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "tool_calls[0].function"),
        ({"messages": [USER], "tools": [{"type": "function"}]}, "tools[0].function"),
        ({"messages": [USER], "stream_options": 5}, "stream_options"),
        ({"messages": [USER], "stop": 5}, "stop"),
        ({"messages": [USER], "functions": [{"name": "f"}]}, "functions"),
        ({"messages": [USER], "function_call": "auto"}, "function_call"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call"),
    ],
)
def test_a_bad_body_is_refused_by_name(body: dict[str, Any], field: str) -> None:
    with pytest.raises(Problem) as caught:
        openai_chat.parse(body, {})
    assert caught.value.kind == "bad_request"
    assert field in caught.value.message


def test_keepalive_is_a_chunk_without_choices() -> None:
    request = openai_chat.parse({"messages": [USER], "model": "m"}, {})
    chunk = json.loads(openai_chat.open_stream(request, "r1", 5).keepalive().removeprefix(b"data: "))
    assert chunk == {
        "id": "chatcmpl-r1",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "m",
        "choices": [],
    }


def test_the_official_client_puts_the_stream_together() -> None:
    openai = pytest.importorskip("openai")
    body = {"messages": [USER], "stream": True, "stream_options": {"include_usage": True}}
    calls = (ToolCall("a", "shell", '{"cmd": "価格🎉"}'), ToolCall("b", "shell", '{"cmd": "b"}'))
    data = stream_bytes(openai_chat, openai_chat.parse(body, {}), make_reply("I look.", *calls), keepalives=2)

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=data)

    http = httpx.Client(transport=httpx.MockTransport(answer))
    client = openai.OpenAI(api_key="k", base_url="http://policy.test/v1", http_client=http)
    with client.chat.completions.stream(model="m", messages=[USER]) as stream:
        completion = stream.get_final_completion()
    message = completion.choices[0].message
    assert message.content == "I look."
    assert [(c.id, c.function.arguments) for c in message.tool_calls] == [(c.id, c.arguments) for c in calls]
    assert completion.choices[0].finish_reason == "tool_calls"
    assert completion.usage.total_tokens == 107
