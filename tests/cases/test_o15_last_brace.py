"""O15: joined argument deltas parse and equal the non-streaming arguments, whatever the last value is."""

import json

import pytest

from proxy_addons.conversation import ToolCall
from tests.proxy_addons.dialects.wire import DIALECTS
from tests.proxy_addons.dialects.wire import assemble
from tests.proxy_addons.dialects.wire import decode
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import make_request
from tests.proxy_addons.dialects.wire import stream_bytes

ENDS = [
    '{"id": 42}',
    '{"on": true}',
    "{}",
    '{"a": {"b": [1, null]}}',
    '{"a": {"b": 1}\n}\n',
    '{"x": "' + "y" * 990 + '"}',
]


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("arguments", ENDS)
def test_o15_arguments_are_whole(name: str, arguments: str) -> None:
    request, reply = make_request(), make_reply("", ToolCall("c1", "f", arguments))
    streamed = assemble(name, decode([stream_bytes(DIALECTS[name], request, reply)]))
    assert streamed == DIALECTS[name].reply_json(request, reply)
    if name == "anthropic_messages":
        value = streamed["content"][0]["input"]
    elif name == "openai_responses":
        value = json.loads(streamed["output"][0]["arguments"])
    elif name == "gemini":
        value = streamed["candidates"][0]["content"]["parts"][0]["functionCall"]["args"]
    else:
        value = json.loads(streamed["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
    assert value == json.loads(arguments)
