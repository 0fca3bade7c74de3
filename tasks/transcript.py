"""A rollout's conversation from its recorded calls, as a grader reads it."""

import json
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

COLUMNS = ("call", "parent_call", "status", "messages_delta", "findings")


def messages(calls: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every message once, in the order in which they were first sent or sampled; `calls` have `COLUMNS`.

    Side calls are no part of it. A call that opens a branch (a compacted history, a sub-agent) repeats messages: those
    with the value of an earlier one are left out.
    """
    turns = [
        call
        for call in sorted(calls, key=lambda call: call["call"])
        if call["status"] == "ok" and not any(f.startswith("side_call") for f in call["findings"] or ())
    ]
    found: list[dict[str, Any]] = []
    seen: set[str] = set()
    for call in turns:
        delta = json.loads(call["messages_delta"] or "[]")
        for place, message in enumerate(delta):
            value = json.dumps(message, sort_keys=True)
            sampled = place == len(delta) - 1
            if call["parent_call"] is not None or sampled or value not in seen:
                found.append(message)
            seen.add(value)
    return found
