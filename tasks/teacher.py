"""The scripted teacher of the built-in tasks: from the conversation so far to the next turn.

It sees what a policy sees, the instruction and the tools' answers, and nothing else, so that its turns can be learned.
Its words are few on purpose: a small model samples every one of them.
"""

import json
import re
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from proxy_addons.errors import ConfigError
from tasks.harnesses.mini_swe_agent import SUBMIT

DONE = "Done."
GIVE_UP = "I could not do it."
SHELL_TOOLS = ("Bash", "exec_command", "shell_command", "shell", "run_shell_command", "bash", "exec", "terminal")

Plan = Callable[[re.Match[str], Sequence[str]], str | None]
"""From the instruction's parts and the tools' answers to the next command; None when the work is done."""


def teacher_turn(messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
    """The teacher's next turn: one call of the shell tool, or its last.

    Raises ConfigError if the instruction is of no built-in kind or no shell tool is offered.
    """
    instruction = "\n".join(m.content for m in messages if m.role == "user")
    answers = [m.content for m in messages if m.role == "tool"]
    try:
        command = next_command(instruction, answers)
    except LookupError:
        return last_turn(GIVE_UP, messages, tools)
    if command is None:
        return last_turn(DONE, messages, tools)
    name, arguments = shell_call(tools, command)
    return Message("assistant", tool_calls=(ToolCall(f"call_{len(answers)}", name, arguments),))


def last_turn(text: str, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
    """The turn that ends the task: `text`, or the command that mini-swe-agent asks for instead."""
    if any(SUBMIT in m.content for m in messages if m.role != "tool"):
        return Message("assistant", tool_calls=(ToolCall("call_last", *shell_call(tools, SUBMIT)),))
    return Message("assistant", text)


def next_command(instruction: str, answers: Sequence[str]) -> str | None:
    """The next shell command, or None when the work is done. Raises LookupError if an answer lacks what was sought."""
    for pattern, plan in _PLANS:
        if match := re.search(pattern, instruction):
            return plan(match, answers)
    raise ConfigError(f"the teacher knows only the built-in tasks, not {instruction[:80]!r}")


def _read(task: re.Match[str], answers: Sequence[str]) -> str | None:
    if not answers:
        return f"cat {task['path']}"
    return f"echo '{_seek(r'code=([a-z]+)', answers[0])}' > answer.txt" if len(answers) == 1 else None


def _find(task: re.Match[str], answers: Sequence[str]) -> str | None:
    return None if answers else f"grep -rl '{task['word']}' {task['folder']} > answer.txt"


def _config(task: re.Match[str], answers: Sequence[str]) -> str | None:
    key, value = task["key"], task["value"]
    return None if answers else f"sed -i 's/{key}=.*/{key}={value}/' {task['path']}"


def _choose(task: re.Match[str], answers: Sequence[str]) -> str | None:
    if not answers:
        return f"grep -l '{task['word']}' {task['folder']}/*"
    return f"sh {_seek(r'([a-z]+/[a-z]+[.]sh)', answers[0])}" if len(answers) == 1 else None


def _run(task: re.Match[str], answers: Sequence[str]) -> str | None:
    """Run a script; if it asks for a file or names an option, do that."""
    if not answers:
        return f"sh {task['path']}"
    if len(answers) > 1:
        return None
    if asked := re.search(r"please create (\S+)", answers[0]):
        return f"touch {asked[1]}"
    return f"sh {task['path']} {_seek(r'use (--[a-z]+)', answers[0])}"


_PATH = "(?P<path>[a-z]+/[a-z]+[.](txt|ini|sh))"
_PAIR = "(?P<key>[a-z]+)=(?P<value>[a-z]+)"
_WORD = "'(?P<word>[a-z]+)'"
_FOLDER = "(?P<folder>[a-z]+)"

_PLANS: tuple[tuple[str, Plan], ...] = (
    (f"code in {_PATH}", _read),
    (f"Read {_PATH}", _read),
    (f"file in {_FOLDER} contains {_WORD}", _find),
    (f"file with {_WORD} in {_FOLDER}", _find),
    (f"Set {_PAIR} in {_PATH}", _config),
    (f"Edit {_PATH} so that it has {_PAIR}", _config),
    (f"script in {_FOLDER} (that )?is for {_WORD}", _choose),
    (f"(Run|Get) {_PATH}", _run),
)


def _seek(pattern: str, answer: str) -> str:
    match = re.search(pattern, answer)
    if match is None:
        raise LookupError(pattern)
    return match[1]


def shell_call(tools: Sequence[Tool], command: str) -> tuple[str, str]:
    """Name and JSON arguments of the call that runs `command`: only what the tool requires. Raises ConfigError if no
    shell tool is offered."""
    offered = {tool.name: tool for tool in tools}
    name = next((name for name in SHELL_TOOLS if name in offered), None)
    if name is None:
        raise ConfigError(f"the teacher needs a shell tool; the harness offers {', '.join(offered) or 'none'}")
    properties = offered[name].parameters.get("properties", {})
    key = "cmd" if "cmd" in properties else "command"
    value: Any = ["sh", "-c", command] if properties.get(key, {}).get("type") == "array" else command
    return name, json.dumps({key: value})
