from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy_addons.conversation import Problem
from proxy_addons.dialects import anthropic_messages
from proxy_addons.dialects import load_dialects
from proxy_addons.dialects.memory import LARGEST_BYTES
from proxy_addons.dialects.memory import Memory

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def spell(value: Any, where: str, notes: list[str]) -> str:
    notes.append("read")
    return repr(value)


_schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
BODIES: dict[str, dict[str, Any]] = {
    "anthropic_messages": {
        "system": "s",
        "messages": [
            {"role": "user", "content": [{"type": "hologram"}, {"type": "text", "text": "u"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "t", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r"}]},
        ],
        "tools": [{"name": "t", "input_schema": _schema}, {"type": "web_search_20260101"}],
    },
    "openai_chat": {
        "messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": None}],
        "tools": [{"type": "function", "function": {"name": "t", "parameters": _schema}}, {"type": "other"}],
    },
    "openai_responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "u"}, {"type": "hologram"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "why"}]},
            {"type": "function_call", "call_id": "1", "name": "t", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "r"},
        ],
        "tools": [{"type": "function", "name": "t", "parameters": _schema}, {"type": "web_search"}],
    },
    "gemini": {
        "contents": [{"role": "user", "parts": [{"text": "u"}]}],
        "tools": [{"functionDeclarations": [{"name": "t", "parameters": _schema}], "googleSearch": {}}],
    },
}


@given(_json, _json)
def test_a_value_is_never_taken_for_another(one: Any, other: Any) -> None:
    memory = Memory()
    for value in (one, other, one):
        notes: list[str] = []
        assert memory.read(spell, value, "here", notes) == repr(value)
        assert notes == ["read"]


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (1, True), (float("inf"), None), (10**400, 10**400 + 1), ("é", "e\u0301")]
)
def test_values_that_python_or_orjson_could_take_for_each_other(one: Any, other: Any) -> None:
    memory = Memory()
    for value in (one, other):
        assert memory.read(spell, {"a": [value]}, "here", []) == repr({"a": [value]})


def test_it_is_read_once_and_a_refusal_every_time() -> None:
    reads = []
    memory = Memory()

    def read(value: Any, where: str, notes: list[str]) -> int:
        reads.append(value)
        if value == "bad":
            raise Problem("bad_request", where)
        return 1

    for _ in range(3):
        memory.read(read, {"good": "here"}, "a", [])
    assert len(reads) == 1
    for where in ("a", "b"):
        with pytest.raises(Problem, match=where):
            memory.read(read, "bad", where, [])
    long = "x" * (LARGEST_BYTES + 1)
    for _ in range(2):
        memory.read(read, long, "a", [])
    assert len(reads) == 5


def test_a_mistake_is_named_by_its_place_also_after_the_same_turn_was_read_elsewhere() -> None:
    good = {"role": "user", "content": "hello"}
    body = {"model": "m", "messages": [good, good, {"role": "user", "content": [{"type": 3}]}]}
    memory = Memory()
    anthropic_messages.parse({**body, "messages": [good]}, {}, memory)
    with pytest.raises(Problem) as refused:
        anthropic_messages.parse(body, {}, memory)
    assert refused.value.param == "messages[2].content[0].type"


@pytest.mark.parametrize("name", sorted(load_dialects()))
def test_every_dialect_reads_alike_with_and_without_it(name: str) -> None:
    dialect, body = load_dialects()[name], BODIES[name]
    memory = Memory()
    assert dialect.parse(body, {}, memory) == dialect.parse(body, {}, memory) == dialect.parse(body, {})
