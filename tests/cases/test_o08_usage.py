"""O08: cached tokens are apart from `input_tokens`, `message_start` has the input counts, unknown is absent."""

from proxy_addons.conversation import Usage
from proxy_addons.dialects import anthropic_messages
from proxy_addons.dialects import openai_chat
from proxy_addons.dialects import openai_responses
from tests.proxy_addons.dialects.wire import decode
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import make_request
from tests.proxy_addons.dialects.wire import stream_bytes

CACHED = Usage(100, 7, 80)
UNKNOWN = Usage(100, 7)
INPUT = {"input_tokens": 20, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 0}
LONG = "x" * 3000


def test_o08_cached_tokens_are_apart() -> None:
    answer = anthropic_messages.reply_json(make_request(), make_reply(LONG, usage=CACHED))
    assert answer["usage"] == {**INPUT, "output_tokens": 7}


def test_o08_stream_tells_input_first_and_output_last() -> None:
    events = decode([stream_bytes(anthropic_messages, make_request(), make_reply(LONG, usage=CACHED), keepalives=1)])
    data = [event for _, event in events]
    assert sum(event["type"] == "content_block_delta" for event in data) == 3
    start = next(event for event in data if event["type"] == "message_start")
    assert start["message"]["usage"] == {**INPUT, "output_tokens": 0}
    outputs = [event["usage"]["output_tokens"] for event in data if event["type"] == "message_delta"]
    assert outputs == sorted(outputs)
    assert outputs[-1] == 7


def test_o08_unknown_is_absent() -> None:
    reply, request = make_reply("x", usage=UNKNOWN), make_request()
    assert anthropic_messages.reply_json(request, reply)["usage"] == {"input_tokens": 100, "output_tokens": 7}
    assert "input_tokens_details" not in openai_responses.reply_json(request, reply)["usage"]
    assert "prompt_tokens_details" not in openai_chat.reply_json(request, reply)["usage"]


def test_o08_known_in_the_other_dialects() -> None:
    reply, request = make_reply("x", usage=CACHED), make_request()
    assert openai_responses.reply_json(request, reply)["usage"] == {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 80},
        "output_tokens": 7,
        "total_tokens": 107,
    }
    assert openai_chat.reply_json(request, reply)["usage"] == {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "total_tokens": 107,
        "prompt_tokens_details": {"cached_tokens": 80},
    }
