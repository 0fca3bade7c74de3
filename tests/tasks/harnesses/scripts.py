"""Policies that follow a script in a real harness, and harnesses with a setting of ours changed."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from tasks import harnesses
from tests.tasks.arena import Teacher

Turns = Sequence[Message]


def say(text: str, *calls: tuple[str, str]) -> Message:
    """A turn: text, then calls as (tool, JSON arguments as sampled)."""
    return Message("assistant", text, tool_calls=tuple(ToolCall("", name, arguments) for name, arguments in calls))


@dataclass
class Scripted(Teacher):
    """Says the turns of `main`, one after the other; of `sub` where the user's words contain `marked`.

    `heard` are the tools' answers that the main agent got. After its last turn an agent repeats that one.
    """

    main: Turns = ()
    sub: Turns = ()
    marked: str = "\0"
    fill_in: Callable[[Message, Sequence[Message]], Message] = lambda turn, _: turn
    heard: list[str] = field(default_factory=list)

    def turn(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        self.asked += 1
        is_sub = any(self.marked in message.content for message in messages if message.role == "user")
        turns = self.sub if is_sub else self.main
        done = sum(message.role == "assistant" for message in messages)
        if not is_sub:
            self.heard = [message.content for message in messages if message.role == "tool"]
        return self.fill_in(turns[min(done, len(turns) - 1)], messages)


class Changed:
    """The harness `name` with some of its functions replaced."""

    def __init__(self, name: str, **functions: Any) -> None:
        self._harness = harnesses.load(name)
        self._functions: Mapping[str, Any] = functions

    def __getattr__(self, name: str) -> Any:
        return self._functions.get(name) or getattr(self._harness, name)
