import pytest

from proxy_addons.conversation import Message
from proxy_addons.conversation import Request
from proxy_addons.conversation import ToolCall
from proxy_addons.kinds import with_kinds

SYSTEM, GO = Message("system", "You work."), Message("user", "go")
ASKED = Message("assistant", tool_calls=(ToolCall("a", "sh", "{}"), ToolCall("b", "sh", "{}")))
A, B = (Message("tool", "ok", tool_call_id=call) for call in "ab")


@pytest.mark.parametrize(
    ("messages", "max_tokens", "kinds"),
    [
        ((SYSTEM, GO), None, ()),
        ((SYSTEM, GO), 2, ()),
        ((SYSTEM, GO), 1, ("side_call:quota",)),
        ((Message("user", "Warmup"),), None, ("side_call:warmup",)),
        ((SYSTEM, Message("user", " Warmup\n")), 1, ("side_call:quota", "side_call:warmup")),
        ((Message("user", "Warmup exercises, please"),), None, ()),
        ((GO, Message("assistant", "hi"), Message("user", "Warmup")), None, ()),
        ((GO, ASKED, A, B), None, ()),
        ((GO, ASKED, B, GO, A), None, ()),
        ((GO, ASKED, A), None, ("tool_call_unanswered",)),
        ((GO, ASKED), None, ()),
        ((GO, A, GO), None, ("compaction",)),
        ((GO, A, ASKED, A, B), None, ("compaction",)),
    ],
)
def test_kinds(messages: tuple[Message, ...], max_tokens: int | None, kinds: tuple[str, ...]) -> None:
    assert with_kinds(Request(messages, max_tokens=max_tokens)) == kinds


def test_what_the_dialect_noted_stays() -> None:
    assert with_kinds(Request((GO, A), notes=("compaction", "x"))) == ("compaction", "x")
