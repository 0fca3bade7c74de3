"""O04: `instructions` and developer items all reach the policy, once and in order; a new turn only adds at the end."""

from typing import Any

from proxy_addons.dialects import openai_responses

BODY: dict[str, Any] = {
    "instructions": "I",
    "input": [
        {"role": "developer", "content": "D1"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ok"},
        {"role": "developer", "content": "D2"},
        {"role": "user", "content": "go"},
    ],
}


def test_o04_order_is_kept() -> None:
    messages = openai_responses.parse(BODY, {}).messages
    assert [(m.role, m.content) for m in messages] == [
        ("system", "I"),
        ("system", "D1"),
        ("user", "hi"),
        ("assistant", "ok"),
        ("system", "D2"),
        ("user", "go"),
    ]


def test_o04_adding_a_turn_keeps_the_prefix() -> None:
    more = {**BODY, "input": [*BODY["input"], {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]}
    before = openai_responses.parse(BODY, {}).messages
    after = openai_responses.parse(more, {}).messages
    assert after[: len(before)] == before
    assert [m.content for m in after[len(before) :]] == ["a", "b"]
