"""O10: a turn of tool calls alone is the same turn however its empty content is spelled."""

from typing import Any

import pytest

from proxy_addons.conversation import Message
from proxy_addons.conversation import ToolCall
from proxy_addons.dialects import anthropic_messages
from proxy_addons.dialects import openai_chat
from proxy_addons.dialects import openai_responses
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import make_request

EMPTY: list[Any] = ["", None, [], [{"type": "text", "text": ""}]]
CALL = ToolCall("c1", "shell", '{"cmd": "ls"}')
EXPECTED = (Message("assistant", tool_calls=(CALL,)), Message("tool", "ok", tool_call_id="c1"))


@pytest.mark.parametrize("content", EMPTY)
def test_o10_chat(content: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": '{"cmd": "ls"}'}}
    turns = [
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]
    assert openai_chat.parse({"messages": turns}, {}).messages == EXPECTED


@pytest.mark.parametrize("blocks", [[], [{"type": "text", "text": ""}]])
def test_o10_messages(blocks: list[Any]) -> None:
    call = {"type": "tool_use", "id": "c1", "name": "shell", "input": {"cmd": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "ok"}
    turns = [{"role": "assistant", "content": [*blocks, call]}, {"role": "user", "content": [*blocks, result]}]
    assert anthropic_messages.parse({"messages": turns}, {}).messages == EXPECTED


@pytest.mark.parametrize("content", EMPTY)
def test_o10_responses(content: Any) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": '{"cmd": "ls"}'}
    output = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
    message = {"type": "message", "role": "assistant", "content": content}
    assert openai_responses.parse({"input": [message, call, output]}, {}).messages == EXPECTED
    assert openai_responses.parse({"input": [call, output]}, {}).messages == EXPECTED


@pytest.mark.parametrize("content", EMPTY)
def test_o10_empty_tool_result(content: Any) -> None:
    block = {"type": "tool_result", "tool_use_id": "c1", "content": content}
    message = anthropic_messages.parse({"messages": [{"role": "user", "content": [block]}]}, {}).messages[0]
    assert message == Message("tool", "", tool_call_id="c1")


def test_o10_our_own_reply_has_no_empty_text() -> None:
    request, reply = make_request(), make_reply("", CALL)
    blocks = anthropic_messages.reply_json(request, reply)["content"]
    assert [block["type"] for block in blocks] == ["tool_use"]
    items = openai_responses.reply_json(request, reply)["output"]
    assert [item["type"] for item in items] == ["function_call"]
    assert openai_chat.reply_json(request, reply)["choices"][0]["message"]["content"] is None


def test_o10_an_empty_reply_is_still_a_whole_message() -> None:
    request, reply = make_request(), make_reply("")
    assert anthropic_messages.reply_json(request, reply)["content"] == [{"type": "text", "text": ""}]
    assert openai_responses.reply_json(request, reply)["output"][0]["content"][0]["text"] == ""
    assert openai_chat.reply_json(request, reply)["choices"][0]["message"]["content"] == ""
