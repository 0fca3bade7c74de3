from typing import Any

import pytest

from proxy_addons.conversation import Message
from proxy_addons.conversation import Problem
from proxy_addons.dialects import Route
from proxy_addons.dialects import anthropic_messages
from proxy_addons.dialects import find_route

BILLING = "x-anthropic-billing-header: cc_version=1; cch=1a2b3;"
USER = {"role": "user", "content": "hi"}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


def _messages(content: Any, role: str = "user") -> tuple[Message, ...]:
    return anthropic_messages.parse({"messages": [{"role": role, "content": content}]}, {}).messages


def test_routes() -> None:
    assert find_route("/v1/messages") == Route(anthropic_messages, "generate")
    assert find_route("/v1/messages/count_tokens") == Route(anthropic_messages, "count")
    assert anthropic_messages.count_json(7) == {"input_tokens": 7}


def test_every_field_is_read() -> None:
    body = {
        "model": "m",
        "max_tokens": 32000,
        "temperature": 0.7,
        "top_p": 0.9,
        "stream": True,
        "system": [_text("A"), _text("B")],
        "messages": [USER],
        "tools": [
            {"name": "Bash", "description": "run", "input_schema": {"type": "object"}},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": []},
    }
    request = anthropic_messages.parse(body, {})
    assert request.messages == (Message("system", "A\nB"), Message("user", "hi"))
    assert (request.model, request.max_tokens, request.temperature, request.top_p) == ("m", 32000, 0.7, 0.9)
    assert request.stream
    assert [(t.name, t.description, t.parameters) for t in request.tools] == [("Bash", "run", {"type": "object"})]
    assert request.notes == ("hosted_tool_dropped:web_search_20250305",)


@pytest.mark.parametrize("system", [[_text(BILLING), _text("S")], f"{BILLING}\nS"])
def test_billing_header_is_removed_from_the_system_only(system: Any) -> None:
    """Half of case O30: two calls of a session that differ in the checksum read alike; a quote of it is the user's."""
    quote = {"role": "user", "content": [_text(BILLING)]}
    messages = anthropic_messages.parse({"system": system, "messages": [quote]}, {}).messages
    assert messages == (Message("system", "S"), Message("user", BILLING))


def test_billing_header_is_anchored() -> None:
    system = f"Never send {BILLING}"
    messages = anthropic_messages.parse({"system": system, "messages": [USER]}, {}).messages
    assert messages[0].content == system


def test_string_and_block_content_are_the_same_turn() -> None:
    assert _messages("hi") == _messages([_text("hi")]) == (Message("user", "hi"),)
    assert _messages("hi", "assistant") == _messages([_text("hi")], "assistant")


def test_results_and_texts_become_turns_in_order() -> None:
    def result(call: str) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": call, "content": f"of {call}"}

    assert _messages([result("a"), result("b"), _text("x"), _text("y")]) == (
        Message("tool", "of a", tool_call_id="a"),
        Message("tool", "of b", tool_call_id="b"),
        Message("user", "x\ny"),
    )


def test_tool_reference_in_a_result() -> None:
    block = {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": [{"type": "tool_reference", "tool_name": "Grep"}, {"type": "tool_reference", "tool_name": "Glob"}],
    }
    (message,) = _messages([block])
    assert message.content == "[tool available: Grep]\n[tool available: Glob]"


def test_unknown_block_is_noted() -> None:
    request = anthropic_messages.parse({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, {})
    assert request.notes == ("unknown_block:hologram",)
    assert request.messages[0].flags == ("unknown_block",)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]}, "content[0].name"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "content[0].tool_use_id"),
        ({"messages": [USER], "tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"messages": [USER], "max_tokens": "many"}, "max_tokens"),
        ({"messages": [USER], "system": 5}, "system"),
    ],
)
def test_a_bad_body_is_refused_by_name(body: dict[str, Any], field: str) -> None:
    with pytest.raises(Problem) as caught:
        anthropic_messages.parse(body, {})
    assert caught.value.kind == "bad_request"
    assert field in caught.value.message


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("bad_request", "invalid_request_error"),
        ("unauthorized", "authentication_error"),
        ("not_found", "not_found_error"),
        ("too_large", "request_too_large"),
        ("budget", "rate_limit_error"),
        ("overloaded", "overloaded_error"),
        ("internal", "api_error"),
    ],
)
def test_error_types(kind: str, expected: str) -> None:
    error = anthropic_messages.error_json(Problem(kind, "m"))
    assert error == {"type": "error", "error": {"type": expected, "message": "m"}}


def test_too_long_keeps_the_words_that_the_harness_looks_for() -> None:
    words = "prompt is too long: 20000 tokens > 16384 maximum"
    error = anthropic_messages.error_json(Problem("context_length", words))
    assert error["error"] == {"type": "invalid_request_error", "message": words}
