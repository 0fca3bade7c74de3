"""A policy that knows the form and nothing else: the floor of an evaluation on the built-in tasks.

It uses the shell tool once, whatever the instruction, to write one of the twenty words that are a task's values to
`answer.txt`, each with the same probability, and ends. Where that word is the answer it is right one time in twenty;
where a file or a path is asked for, never (`FLOOR`).
"""

import random
from collections.abc import Mapping
from collections.abc import Sequence
from fractions import Fraction

from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from tasks import builtin
from tasks.teacher import DONE
from tasks.teacher import last_turn
from tasks.teacher import shell_call

_ONE_WORD = Fraction(1, len(builtin.VALUES))

FLOOR: Mapping[str, Fraction] = {
    "read": _ONE_WORD,
    "choose": _ONE_WORD,
    "recover": _ONE_WORD,
    "find": Fraction(0),
    "config": Fraction(0),
    "check": Fraction(0),
}
"""Its success rate by kind of task."""

_random = random.SystemRandom()  # an evaluation that is taken up again must not repeat its guesses


def guesser_turn(messages: Sequence[Message], tools: Sequence[Tool], rng: random.Random = _random) -> Message:
    """The next turn: a guess, or the last one. Raises ConfigError if no shell tool is offered."""
    if any(message.role == "tool" for message in messages):
        return last_turn(DONE, messages, tools)
    call = shell_call(tools, f"echo {rng.choice(builtin.VALUES)} > answer.txt")
    return Message("assistant", tool_calls=(ToolCall("call_0", *call),))
