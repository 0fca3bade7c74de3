"""O05: Codex's freeform tool is a function with one string for the policy and a `custom_tool_call` on the wire."""

import json
from dataclasses import replace

from proxy_addons.conversation import ToolCall
from proxy_addons.conversation import canonical
from proxy_addons.dialects import openai_responses
from tests.proxy_addons.dialects.wire import assemble
from tests.proxy_addons.dialects.wire import decode
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import stream_bytes

PATCH = '*** Begin Patch\n\n+a "quoted" \\ back\\\\slash — 価格🎉\n\n*** End Patch\n'
TOOLS = [
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edit files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: LINE+"},
    },
    {"type": "function", "name": "shell", "description": "Run.", "parameters": {"type": "object"}},
    {"type": "web_search"},
]
BODY = {"model": "m", "input": "go", "tools": TOOLS}


def test_o05_policy_sees_a_function_with_one_string() -> None:
    request = openai_responses.parse(BODY, {})
    assert [(tool.name, tool.kind) for tool in request.tools] == [("apply_patch", "custom"), ("shell", "function")]
    parameters = request.tools[0].parameters
    assert list(parameters["properties"]) == parameters["required"] == ["input"]
    assert parameters["properties"]["input"]["type"] == "string"
    assert "start: LINE+" in parameters["properties"]["input"]["description"]
    assert request.notes == ("hosted_tool_dropped:web_search",)


def test_o05_input_is_byte_equal_streamed_and_whole() -> None:
    request = openai_responses.parse(BODY, {})
    reply = make_reply("", ToolCall("c1", "apply_patch", json.dumps({"input": PATCH})))
    events = decode([stream_bytes(openai_responses, request, reply)])
    item = assemble("openai_responses", events)["output"][0]
    assert item == openai_responses.reply_json(request, reply)["output"][0]
    assert item["type"] == "custom_tool_call"
    assert item["input"].encode() == PATCH.encode()
    deltas = [data["delta"] for name, data in events if name == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == PATCH


def test_o05_output_item_is_understood_next_turn() -> None:
    request = openai_responses.parse(BODY, {})
    reply = make_reply("", ToolCall("c1", "apply_patch", json.dumps({"input": PATCH})))
    item = openai_responses.reply_json(request, reply)["output"][0]
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "patched"}
    messages = openai_responses.parse({**BODY, "input": [item, output]}, {}).messages
    assert canonical(messages[0]) == canonical(reply.message())
    assert (messages[1].role, messages[1].content, messages[1].tool_call_id) == ("tool", "patched", "c1")


def test_o05_arguments_of_another_shape_come_back_as_sampled() -> None:
    """Nothing is invented: the harness refuses such a call and the turn still continues its chain."""
    request = openai_responses.parse(BODY, {})
    reply = make_reply("", ToolCall("c1", "apply_patch", '{"patch": "x"'))
    item = openai_responses.reply_json(request, reply)["output"][0]
    assert (item["type"], item["arguments"]) == ("function_call", '{"patch": "x"')
    message = openai_responses.parse({"input": [item]}, {}).messages[0]
    assert canonical(message) == canonical(replace(reply, id="r2").message())
