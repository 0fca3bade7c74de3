"""O21: a Responses stream of reasoning, a sentence and two calls: typed items, rising numbers, the same ids."""

from proxy_addons.conversation import ToolCall
from proxy_addons.dialects import openai_responses
from tests.proxy_addons.dialects.wire import SHELL
from tests.proxy_addons.dialects.wire import assemble
from tests.proxy_addons.dialects.wire import decode
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import make_request
from tests.proxy_addons.dialects.wire import stream_bytes

CALLS = (ToolCall("c1", "shell", '{"cmd": "' + "a" * 1500 + '"}'), ToolCall("c2", "shell", '{"cmd": "b"}'))
REPLY = make_reply("I look.", *CALLS, reasoning="hm")


def test_o21_items_in_order_each_added_filled_done() -> None:
    events = decode([stream_bytes(openai_responses, make_request(SHELL), REPLY, keepalives=2)])
    # The assembler asserts: numbers rise by 1, deltas join to what `done` says, items equal the completed response.
    response = assemble("openai_responses", events)
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert response["output"][1]["content"][0]["text"] == "I look."
    assert response["status"] == "completed"
    names = [name for name, _ in events]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names.count("response.output_item.added") == names.count("response.output_item.done") == 4
    assert names.count("response.function_call_arguments.done") == 2


def test_o21_ids_are_the_same_throughout() -> None:
    events = decode([stream_bytes(openai_responses, make_request(SHELL), REPLY)])
    final = [item["id"] for item in events[-1][1]["response"]["output"]]
    assert len(set(final)) == 4
    for _, data in events:
        if "output_index" in data:
            seen = data.get("item_id") or data["item"]["id"]
            assert seen == final[data["output_index"]]
