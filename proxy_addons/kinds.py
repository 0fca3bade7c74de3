"""What a request is besides an agent's next turn, by rules that look at this request alone; stored as findings.

| finding | rule |
|---|---|
| `side_call:quota` | at most one token is asked for |
| `side_call:warmup` | the only turn is the user's, and says `Warmup` |
| `compaction_request` | the harness asks the policy to sum up its history (found by the dialect) |
| `compaction` | the history was cut: the harness says so (found by the dialect), or a tool result's call is gone |
| `tool_call_unanswered` | a call in the history has no result, and turns follow |

`side_call:no_tools` needs the whole rollout (`settle.side_calls`). Which of them are left out of training is the
trainer's setting `leave_out`; the two kinds of compaction are trained unless it names them.
"""

from collections.abc import Iterator

from proxy_addons.conversation import Request
from proxy_addons.settle import TURNS_ALL_THE_SAME


def with_kinds(request: Request) -> tuple[str, ...]:
    """The request's notes, and its kinds among them."""
    return tuple(dict.fromkeys([*request.notes, *_kinds(request)]))


def is_aside(request: Request) -> bool:
    """Whether it may be a side call, as far as can be told when it comes and its kinds are noted: it says so, or it
    offers no tools. A harness without tools asks nothing else, so both sorts have the same limit."""
    if any(note.startswith("side_call:") for note in request.notes):
        return True
    return not (request.tools or request.agent or TURNS_ALL_THE_SAME.intersection(request.notes))


def _kinds(request: Request) -> Iterator[str]:
    if request.max_tokens is not None and request.max_tokens <= 1:
        yield "side_call:quota"
    turns = [m for m in request.messages if m.role != "system"]
    if len(turns) == 1 and turns[0].role == "user" and turns[0].content.strip() == "Warmup":
        yield "side_call:warmup"
    yield from _orphans(request)


def _orphans(request: Request) -> Iterator[str]:
    asked: set[str] = set()
    answered: set[str | None] = set()
    for message in request.messages:
        if message.role == "tool":
            if message.tool_call_id not in asked:
                yield "compaction"
            answered.add(message.tool_call_id)
        if message.tool_calls:
            asked.update([call.id for call in message.tool_calls])
    last = {call.id for call in request.messages[-1].tool_calls}
    if asked - answered - last:
        yield "tool_call_unanswered"
