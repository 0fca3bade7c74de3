"""O79: the last chunk tells the usage when it was asked for, and no delta has an empty `tool_calls`."""

import pytest

from proxy_addons.conversation import ToolCall
from proxy_addons.dialects import openai_chat
from tests.proxy_addons.dialects.wire import decode
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import stream_bytes

TURN = {"role": "user", "content": "hi"}


@pytest.mark.parametrize("calls", [(), (ToolCall("c1", "f", "{}"),)])
@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
def test_o79_usage_when_asked_for(options: dict[str, object], calls: tuple[ToolCall, ...]) -> None:
    request = openai_chat.parse({"messages": [TURN], "stream": True, **options}, {})
    events = decode([stream_bytes(openai_chat, request, make_reply("text", *calls), keepalives=1)])
    assert events[-1] == (None, "[DONE]")
    chunks = [data for _, data in events[:-1]]
    if options:
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["total_tokens"] == 107
    else:
        assert chunks[-1]["choices"][0]["finish_reason"]
    assert sum("usage" in chunk for chunk in chunks) == bool(options)
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert choice["delta"].get("tool_calls") != []
    assert "tool_calls" not in openai_chat.reply_json(request, make_reply("text"))["choices"][0]["message"]
