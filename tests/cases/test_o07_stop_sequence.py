"""O07: a matched stop string is told as such; a stop token or a plain end is `end_turn`."""

import pytest

from proxy_addons.dialects import anthropic_messages
from tests.proxy_addons.dialects.wire import assemble
from tests.proxy_addons.dialects.wire import decode
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import make_request
from tests.proxy_addons.dialects.wire import stream_bytes


@pytest.mark.parametrize(("matched", "reason"), [("###", "stop_sequence"), (None, "end_turn")])
def test_o07_stop_reason(matched: str | None, reason: str) -> None:
    request, reply = make_request(), make_reply("text", stop_sequence=matched)
    streamed = assemble("anthropic_messages", decode([stream_bytes(anthropic_messages, request, reply)]))
    for answer in (anthropic_messages.reply_json(request, reply), streamed):
        assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, matched)


def test_o07_stop_sequences_are_read() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "stop_sequences": ["###", "END"]}
    assert anthropic_messages.parse(body, {}).stop == ("###", "END")
