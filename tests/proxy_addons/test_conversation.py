from typing import Any

import pytest

from proxy_addons.conversation import Message
from proxy_addons.conversation import ToolCall
from proxy_addons.conversation import canonical

SAMPLED = '{"b":1,"a":"é"}'


def turn(arguments: str) -> Any:
    return canonical(Message("assistant", tool_calls=(ToolCall("any id", "f", arguments),)))


@pytest.mark.parametrize("text", ['{"b": 1, "a": "\\u00e9"}', '{"a": "é", "b": 1}', ' {"b":1,\n"a":"é"}'])
def test_o28_another_spelling_is_the_same_turn(text: str) -> None:
    assert turn(text) == turn(SAMPLED)


@pytest.mark.parametrize(
    ("sampled", "returned"),
    [
        ('{"n":1}', '{"n":1.0}'),
        ('{"n":1e3}', '{"n":1000.0}'),
        ('{"n":1,"n":2}', '{"n":2}'),
        ('{"n":"a "}', '{"n":"a"}'),
        ('{"n":true}', '{"n":1}'),
        ('{"n":["x"]}', '{"n":"x"}'),
        ("not json", "not  json"),
    ],
)
def test_o28_another_value_is_another_turn(sampled: str, returned: str) -> None:
    assert turn(sampled) != turn(returned)


SCHEMA = {
    "properties": {
        "all": {"type": "boolean", "default": False},
        "n": {"default": 250},
        "edits": {"items": {"properties": {"mode": {"default": "w"}}}},
        "free": {"type": "object"},
    }
}


@pytest.mark.parametrize(
    ("sampled", "returned", "same"),
    [
        ('{"a":1}', '{"all": false, "n": 250, "a": 1}', True),
        ('{"all":false,"a":1}', '{"a": 1}', True),
        ('{"edits":[{"x":1}]}', '{"edits":[{"x":1,"mode":"w"}]}', True),
        ('{"a":1}', '{"all": true, "a": 1}', False),
        ('{"a":1}', '{"all": 0, "a": 1}', False),
        ('{"a":1}', '{"a": 1, "n": 250.0}', False),
        ('{"a":1}', '{"a": 1, "b": false}', False),
        ('{"free":{}}', '{"free":{"all":false}}', False),
        ('{"edits":[{"x":1}]}', '{"edits":[{"x":1,"mode":"a"}]}', False),
        ("[1]", "[1, false]", False),
    ],
)
def test_o28_a_default_filled_in_is_the_same_turn_and_another_value_is_not(
    sampled: str, returned: str, same: bool
) -> None:
    one, two = (Message("assistant", tool_calls=(ToolCall("x", "f", text),)) for text in (sampled, returned))
    assert (canonical(one, {"f": SCHEMA}) == canonical(two, {"f": SCHEMA})) is same
    assert canonical(one) != canonical(two)


def test_o10_ids_and_reasoning_do_not_make_a_turn_another() -> None:
    one = Message("assistant", "hi", "because", (ToolCall("1", "f", "{}"),))
    two = Message("assistant", "hi", "", (ToolCall("2", "f", "{ }"),))
    assert canonical(one) == canonical(two)
