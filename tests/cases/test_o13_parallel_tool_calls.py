"""O13: parallel calls stay apart in a stream: own block, own index, own id, own arguments."""

import json

import pytest

from proxy_addons.conversation import ToolCall
from tests.proxy_addons.dialects.wire import DIALECTS
from tests.proxy_addons.dialects.wire import assemble
from tests.proxy_addons.dialects.wire import decode
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import make_request
from tests.proxy_addons.dialects.wire import stream_bytes

# Long enough for three and for two deltas.
READ = ToolCall("c1", "Read", json.dumps({"path": "a" * 2500}))
GREP = ToolCall("c2", "Grep", json.dumps({"pattern": "b" * 1500}))


@pytest.mark.parametrize("name", DIALECTS)
def test_o13_two_calls(name: str) -> None:
    request, reply = make_request(), make_reply("", READ, GREP)
    answer = assemble(name, decode([stream_bytes(DIALECTS[name], request, reply)]))
    if name == "anthropic_messages":
        got = [(b["id"], b["name"], b["input"]) for b in answer["content"]]
    elif name == "openai_responses":
        got = [(i["call_id"], i["name"], json.loads(i["arguments"])) for i in answer["output"]]
    elif name == "gemini":
        calls = [part["functionCall"] for part in answer["candidates"][0]["content"]["parts"]]
        got = [(c["id"], c["name"], c["args"]) for c in calls]
    else:
        calls = answer["choices"][0]["message"]["tool_calls"]
        got = [(c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]
    assert got == [(call.id, call.name, json.loads(call.arguments)) for call in (READ, GREP)]


def test_o13_each_block_closes_before_the_next_opens() -> None:
    events = decode([stream_bytes(DIALECTS["anthropic_messages"], make_request(), make_reply("", READ, GREP))])
    steps = [(data["type"], data["index"]) for _, data in events if "index" in data]
    one = ["content_block_start", *["content_block_delta"] * 3, "content_block_stop"]
    two = ["content_block_start", *["content_block_delta"] * 2, "content_block_stop"]
    assert steps == [*((kind, 0) for kind in one), *((kind, 1) for kind in two)]


def test_o13_chat_deltas_name_their_index() -> None:
    events = decode([stream_bytes(DIALECTS["openai_chat"], make_request(), make_reply("", READ, GREP))])
    deltas = [data["choices"][0]["delta"] for _, data in events[:-1] if data["choices"]]
    indices = [call["index"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert indices == [0] * 4 + [1] * 3
