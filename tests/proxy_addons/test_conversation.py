import pytest

from proxy_addons.conversation import Image
from proxy_addons.conversation import Message
from proxy_addons.conversation import ToolCall
from proxy_addons.conversation import canonical
from proxy_addons.conversation import message_json

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


def test_an_image_is_part_of_the_turn_by_its_content() -> None:
    one, spelled, other = Image("aa", "image/png", 3), Image("aa", "image/x-png", 3), Image("bb", "image/png", 3)
    link = Image(url="https://example.invalid/a.png")
    turns = [canonical(Message("user", "see", images=(image,))) for image in (one, spelled, other, link)]
    assert turns[0] == turns[1]
    assert len({repr(turn) for turn in turns}) == 3


def test_a_stored_message_refers_to_its_images() -> None:
    seen = Image("aa", "image/png", 3, at=4, shown=True, data=b"abc")
    message = Message("user", "see [image]", images=(seen, Image(url="https://example.invalid/a.png", at=11)))
    assert message_json(message) == {
        "role": "user",
        "content": "see [image]",
        "images": [
            {"sha256": "aa", "media_type": "image/png", "size": 3, "at": 4, "shown": True},
            {"url": "https://example.invalid/a.png", "size": 0, "at": 11, "shown": False},
        ],
    }
