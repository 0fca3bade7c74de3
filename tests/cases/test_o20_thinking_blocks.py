"""O20: each thinking block has its signature in both modes, and comes back in every form."""

from typing import Any

import pytest

from proxy_addons.conversation import ToolCall
from proxy_addons.dialects import anthropic_messages
from tests.proxy_addons.dialects.wire import assemble
from tests.proxy_addons.dialects.wire import decode
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import make_request
from tests.proxy_addons.dialects.wire import stream_bytes

CALL = ToolCall("c1", "f", "{}")
THOUGHT: dict[str, Any] = {"type": "thinking", "thinking": "first"}
USE: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}


@pytest.mark.parametrize("calls", [(), (CALL,)])
def test_o20_signature_is_the_same_in_both_modes(calls: tuple[ToolCall, ...]) -> None:
    reply = make_reply("answer", *calls, reasoning="hm")
    whole = anthropic_messages.reply_json(make_request(), reply)["content"][0]
    assert isinstance(whole["signature"], str)
    assert whole["signature"]
    events = [data for _, data in decode([stream_bytes(anthropic_messages, make_request(), reply)])]
    assert assemble("anthropic_messages", [(e["type"], e) for e in events])["content"][0] == whole


def test_o20_stream_starts_empty_and_signs_once_before_the_stop() -> None:
    reply = make_reply("answer", reasoning="hm")
    events = [data for _, data in decode([stream_bytes(anthropic_messages, make_request(), reply)])]
    block = [event for event in events if event.get("index") == 0]
    assert block[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert [event["type"] for event in block].count("content_block_stop") == 1
    assert [event.get("delta", {}).get("type") for event in block].count("signature_delta") == 1
    assert block[-2]["delta"]["type"] == "signature_delta"


@pytest.mark.parametrize("signature", [{}, {"signature": ""}, {"signature": "openforge-r1"}])
def test_o20_replay_goes_to_the_reasoning_field(signature: dict[str, str]) -> None:
    blocks = [{**THOUGHT, **signature}, USE]
    then = [
        {"type": "thinking", "thinking": "second", **signature},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
        {"type": "text", "text": "answer"},
    ]
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "ok"}
    turns = [
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": then},
    ]
    messages = anthropic_messages.parse({"messages": turns}, {}).messages
    assert (messages[0].content, messages[0].reasoning) == ("", "first")
    assert (messages[2].content, messages[2].reasoning) == ("answer", "second")
    assert messages[2].flags == ("redacted_thinking",)
