import json
from typing import Any

import pytest

from proxy_addons.conversation import Message
from proxy_addons.conversation import Problem
from proxy_addons.conversation import ToolCall
from proxy_addons.dialects import Route
from proxy_addons.dialects import find_route
from proxy_addons.dialects import openai_responses
from tests.proxy_addons.dialects.wire import PATCH
from tests.proxy_addons.dialects.wire import SHELL
from tests.proxy_addons.dialects.wire import SPAWN
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import make_request
from tests.proxy_addons.dialects.wire import stream_bytes

NAMESPACE = {
    "type": "namespace",
    "name": "agents",
    "tools": [{"type": "function", "name": "spawn", "description": "d", "parameters": {"type": "object"}}],
}


def test_routes() -> None:
    assert find_route("/v1/responses") == Route(openai_responses, "generate")
    assert find_route("/v1/responses/input_tokens") == Route(openai_responses, "count")
    assert openai_responses.count_json(7)["input_tokens"] == 7


def test_every_field_is_read() -> None:
    body = {
        "model": "m",
        "instructions": "I",
        "input": "hi",
        "max_output_tokens": 100,
        "temperature": 0.7,
        "top_p": 0.9,
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    request = openai_responses.parse(body, {})
    assert request.messages == (Message("system", "I"), Message("user", "hi"))
    assert (request.model, request.max_tokens, request.temperature, request.top_p) == ("m", 100, 0.7, 0.9)
    assert request.stream


def test_assistant_items_are_one_turn() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "brief"}], "encrypted_content": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "a", "name": "shell", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "shell", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "long"}]},
        {"role": "assistant", "content": "Done."},
    ]
    assert openai_responses.parse({"input": items}, {}).messages == (
        Message("user", "hi"),
        Message("assistant", "I look.", "brief", (ToolCall("a", "shell", "{}"), ToolCall("b", "shell", "{}"))),
        Message("tool", "1", tool_call_id="a"),
        Message("tool", "2", tool_call_id="b"),
        Message("assistant", "Done.", "long"),
    )


def test_reasoning_alone_is_a_turn() -> None:
    items = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}]
    assert openai_responses.parse({"input": items}, {}).messages == (Message("assistant", "", "hm"),)


def test_namespace_is_in_the_name_and_back_on_the_wire() -> None:
    request = openai_responses.parse({"input": "go", "tools": [NAMESPACE]}, {})
    (tool,) = request.tools
    assert (tool.name, tool.namespace) == ("agents__spawn", "agents")
    item = openai_responses.reply_json(request, make_reply("", ToolCall("a", tool.name, "{}")))["output"][0]
    assert (item["namespace"], item["name"]) == ("agents", "spawn")
    again = openai_responses.parse({"input": [item]}, {}).messages[0]
    assert again.tool_calls == (ToolCall("a", "agents__spawn", "{}"),)


def test_additional_tools_are_tools() -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [NAMESPACE, {"type": "custom", "name": "exec"}]}
    request = openai_responses.parse({"input": [item, {"role": "user", "content": "go"}]}, {})
    assert [(tool.name, tool.kind) for tool in request.tools] == [("agents__spawn", "function"), ("exec", "custom")]
    assert request.messages == (Message("user", "go"),)


def test_unknown_item_is_a_placeholder_a_flag_and_a_note() -> None:
    request = openai_responses.parse({"input": [{"type": "computer_call", "id": "x"}]}, {})
    assert request.notes == ("unknown_item:computer_call",)
    (message,) = request.messages
    assert message.flags == ("unknown_item",)
    assert "computer_call" in message.content


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [{"role": "ctx", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "call_id": "a"}]}, "input[0].name"),
        ({"input": [{"type": "function_call", "name": "a"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"input": "hi", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "hi", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
    ],
)
def test_a_bad_body_is_refused_by_name(body: dict[str, Any], field: str) -> None:
    with pytest.raises(Problem) as caught:
        openai_responses.parse(body, {})
    assert caught.value.kind == "bad_request"
    assert field in caught.value.message


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("bad_request", "invalid_request_error"),
        ("budget", "rate_limit_error"),
        ("overloaded", "server_error"),
        ("internal", "server_error"),
    ],
)
def test_error_types(kind: str, expected: str) -> None:
    assert openai_responses.error_json(Problem(kind, "m"))["error"]["type"] == expected


def test_context_length_has_the_code_that_the_harness_looks_for() -> None:
    problem = Problem("context_length", "too long")
    assert openai_responses.error_json(problem)["error"]["code"] == "context_length_exceeded"
    failed = openai_responses.open_stream(make_request(), "r", 1).error(problem)
    assert json.loads(failed.split(b"data: ")[1])["response"]["error"]["code"] == "context_length_exceeded"


def test_the_official_client_reads_every_event() -> None:
    """Its own types, strictly: an event that it does not know or that lacks a field fails here."""
    responses = pytest.importorskip("openai.types.responses")
    pydantic = pytest.importorskip("pydantic")
    adapter = pydantic.TypeAdapter(responses.ResponseStreamEvent)
    calls = (
        ToolCall("a", "shell", '{"cmd": "ls"}'),
        ToolCall("b", "apply_patch", '{"input": "+x"}'),
        ToolCall("c", "agents__spawn", "{}"),
    )
    reply = make_reply("I look.", *calls, reasoning="hm")
    data = stream_bytes(openai_responses, make_request(SHELL, PATCH, SPAWN), reply, keepalives=1)
    kinds = []
    for block in data.decode().split("\n\n")[:-1]:
        event = json.loads(block.split("data: ")[1])
        # Absent because unknown here (case O08), though the client's own type wants numbers.
        usage = event.get("response", {}).get("usage")
        if usage:
            usage["output_tokens_details"] = {"reasoning_tokens": 0}
            usage["input_tokens_details"]["cache_write_tokens"] = 0
        kinds.append(adapter.validate_python(event).type)
    assert kinds[-1] == "response.completed"
    assert "response.custom_tool_call_input.delta" in kinds
    assert "response.reasoning_text.delta" in kinds


def test_codex_s_tool_search_is_refused_with_a_note_each() -> None:
    arguments = {"query": "mail"}
    call = {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": arguments}
    found = {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": []}
    body = {
        "input": [{"role": "user", "content": "go"}, call, found],
        "tools": [{"type": "tool_search", "execution": "client", "parameters": {}}],
    }
    request = openai_responses.parse(body, {})
    expected = ["hosted_tool_dropped:tool_search", "unknown_item:tool_search_call", "unknown_item:tool_search_output"]
    assert list(request.notes) == expected
    assert ["tool_search" in message.content for message in request.messages] == [False, True, True]
