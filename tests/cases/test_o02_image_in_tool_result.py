"""O02: an image that a text-only policy cannot see leaves a placeholder and a flag, in its place."""

from typing import Any

import pytest

from proxy_addons.dialects import anthropic_messages
from proxy_addons.dialects import openai_chat
from proxy_addons.dialects import openai_responses

SEEN = "[image omitted: this policy reads text only]"
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
TEXT = {"type": "text", "text": "read a.png"}


@pytest.mark.parametrize(
    ("content", "expected", "images"),
    [
        ([TEXT, IMAGE], f"read a.png\n{SEEN}", 1),
        ([IMAGE], SEEN, 1),
        ([IMAGE, TEXT, IMAGE], f"{SEEN}\nread a.png\n{SEEN}", 2),
    ],
)
def test_o02_placeholder_in_order(content: list[Any], expected: str, images: int) -> None:
    block = {"type": "tool_result", "tool_use_id": "t1", "content": content}
    message = anthropic_messages.parse({"messages": [{"role": "user", "content": [block]}]}, {}).messages[0]
    assert message.role == "tool"
    assert message.content == expected
    assert message.flags == ("image_omitted",) * images


def test_o02_the_same_in_the_other_dialects() -> None:
    item = {
        "type": "function_call_output",
        "call_id": "c1",
        "output": [
            {"type": "input_text", "text": "read a.png"},
            {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
        ],
    }
    responses = openai_responses.parse({"input": [item]}, {}).messages[0]
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    turn = {"role": "tool", "tool_call_id": "c1", "content": [TEXT, part]}
    chat = openai_chat.parse({"messages": [turn]}, {}).messages[0]
    assert responses.content == chat.content == f"read a.png\n{SEEN}"
    assert responses.flags == chat.flags == ("image_omitted",)
