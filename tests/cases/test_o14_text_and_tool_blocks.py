"""O14: a block of one type is closed before one of another type opens."""

import pytest

from proxy_addons.conversation import ToolCall
from proxy_addons.dialects import anthropic_messages
from tests.proxy_addons.dialects.wire import decode
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import make_request
from tests.proxy_addons.dialects.wire import stream_bytes

CALLS = (ToolCall("c1", "a", "{}"), ToolCall("c2", "b", "{}"))
DELTA_OF = {
    "thinking": {"thinking_delta", "signature_delta"},
    "text": {"text_delta"},
    "tool_use": {"input_json_delta"},
}


@pytest.mark.parametrize("content", ["", "\n", "then"])
@pytest.mark.parametrize("reasoning", ["", "hm"])
def test_o14_deltas_fit_the_open_block(content: str, reasoning: str) -> None:
    reply = make_reply(content, *CALLS, reasoning=reasoning)
    open_block = None
    kinds = []
    for _, data in decode([stream_bytes(anthropic_messages, make_request(), reply)]):
        if data["type"] == "content_block_start":
            assert open_block is None
            open_block = data["content_block"]["type"]
            kinds.append(open_block)
        elif data["type"] == "content_block_delta":
            assert data["delta"]["type"] in DELTA_OF[str(open_block)]
        elif data["type"] == "content_block_stop":
            open_block = None
    assert open_block is None
    assert kinds == [*["thinking"] * bool(reasoning), *["text"] * bool(content), "tool_use", "tool_use"]
