"""O01: Claude Code puts role `system` entries inside `messages`; they stay where they are."""

from typing import Any

import pytest

from proxy_addons.conversation import Problem
from proxy_addons.dialects import anthropic_messages

REMINDER = "<system-reminder>todo list is empty</system-reminder>"
CALL = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "a"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "text of a"}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "fix bug"},
    {"role": "assistant", "content": [CALL]},
    {"role": "user", "content": [RESULT]},
    {"role": "user", "content": "go on"},
]


@pytest.mark.parametrize("content", [REMINDER, [{"type": "text", "text": REMINDER}]])
@pytest.mark.parametrize("place", [0, 3, 4])
def test_o01_text_stays_at_its_place(place: int, content: Any) -> None:
    turns = [*TURNS[:place], {"role": "system", "content": content}, *TURNS[place:]]
    messages = anthropic_messages.parse({"system": "S", "messages": turns}, {}).messages
    assert messages[0].content == "S"
    assert [m.role for m in messages[1:]].index("system") == place
    assert messages[1 + place].content == REMINDER
    without = anthropic_messages.parse({"system": "S", "messages": TURNS}, {}).messages
    assert messages[: 1 + place] == without[: 1 + place]


def test_o01_unknown_role_is_refused_with_its_index() -> None:
    with pytest.raises(Problem) as caught:
        anthropic_messages.parse({"messages": [TURNS[0], {"role": "ctx", "content": "x"}]}, {})
    assert caught.value.status == 400
    assert "messages[1].role" in str(caught.value)
    assert "ctx" in str(caught.value)
