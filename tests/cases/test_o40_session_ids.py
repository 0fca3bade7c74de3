"""O40: wherever a harness puts its ids, and however broken, they never matter for reading its request."""

from typing import Any

import pytest

from proxy_addons.dialects import anthropic_messages
from proxy_addons.dialects import openai_responses

TURN = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"metadata": None},
        {"metadata": {"user_id": "user_abc_account__session_0f3a"}},
        {"metadata": {"user_id": '{"device_id": "d", "session_id": "0f3a"}'}},
        {"metadata": {"user_id": '{"device_id": '}},
        {"metadata": {"user_id": 7}},
        {"metadata": "broken"},
    ],
)
@pytest.mark.parametrize("headers", [{}, {"X-Claude-Code-Session-Id": "0f3a"}])
def test_o40_claude_code(metadata: dict[str, Any], headers: dict[str, str]) -> None:
    request = anthropic_messages.parse({"messages": [TURN], **metadata}, headers)
    assert request == anthropic_messages.parse({"messages": [TURN]}, {})


def test_o40_claude_code_sub_agent() -> None:
    request = anthropic_messages.parse({"messages": [TURN]}, {"X-Claude-Code-Agent-Id": "a1"})
    assert request.agent == "a1"


@pytest.mark.parametrize(
    ("headers", "agent"),
    [
        ({}, None),
        ({"session-id": "s", "thread-id": "s"}, None),
        ({"Session-Id": "s", "Thread-Id": "t", "x-openai-subagent": "collab_spawn"}, "t"),
        ({"session-id": "s"}, None),
    ],
)
def test_o40_codex(headers: dict[str, str], agent: str | None) -> None:
    body = {"input": "hi", "client_metadata": {"thread_id": 3}, "prompt_cache_key": "s"}
    assert openai_responses.parse(body, headers).agent == agent
