"""What an attempt did, as text to read: the policy's turns and what the tools answered, from its recorded calls."""

import json
from collections.abc import Iterable
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxy_addons.packing import has_calls
from proxy_addons.packing import read_calls

_COLUMNS = ("call", "status", "messages_delta", "findings")
_MESSAGE, _WHOLE = 800, 8000
"""Characters that are kept of a message and of all."""


def read(path: Path) -> str:
    """The transcript of the calls in `path`; empty if they are not there or none was answered."""
    return render(read_calls(str(path), _COLUMNS)) if has_calls(str(path)) else ""


def render(calls: Iterable[Mapping[str, Any]]) -> str:
    """The transcript of rows of the `calls` table. What the harness says itself and side calls are left out."""
    turns = [
        call
        for call in sorted(calls, key=lambda call: call["call"])
        if call["status"] == "ok" and not any(finding.startswith("side_call") for finding in call["findings"] or ())
    ]
    messages = [json.loads(call["messages_delta"] or "[]") for call in turns]
    results: dict[str, str] = {}
    for message in (message for delta in messages for message in delta):
        if message["role"] == "tool" and message.get("tool_call_id"):
            results.setdefault(message["tool_call_id"], message.get("content") or "")
    # A turn that opens a branch repeats the history; only its last message was sampled in it.
    sampled = [delta[-1] for delta in messages if delta and delta[-1]["role"] == "assistant"]
    return _cut("\n".join(line for turn in sampled for line in _lines(turn, results)), _WHOLE)


def _lines(turn: Mapping[str, Any], results: Mapping[str, str]) -> Iterable[str]:
    if text := (turn.get("content") or "").strip():
        yield f"says: {_cut(text, _MESSAGE)}"
    for call in turn.get("tool_calls", ()):
        yield f"calls {call['name']}: {_cut(call.get('arguments') or '', _MESSAGE)}"
        if (result := results.get(call.get("id") or "")) is not None:
            yield f"got: {_cut(result.strip(), _MESSAGE)}"


def _cut(text: str, limit: int) -> str:
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]} […] {text[-half:]}"
