"""The paper's five behaviour axes, computed from recorded calls by the rules in docs/evaluation.md.

    traces = [read_trace(read_calls(row["calls_path"], COLUMNS), succeeded) for row in attempts_at_one_task]
    axes(traces)                       # one `Axes` per attempt; what a rule cannot tell is None, not 0

Every harness is read alike: what counts are the tool calls that the policy sampled and the results that came back.
"""

import json
import re
import shlex
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasks.teacher import SHELL_TOOLS

COLUMNS = ("call", "status", "messages_delta", "findings")

MALFORMED = frozenset({"tool_call_unreadable", "truncated", "empty_reply", "reasoning_open"})
"""Findings of a turn that was not in the form that the policy's template asks for."""

_CHANGES = re.compile(r"write|edit|patch|create|delete|replace|insert|update|append|rename|move", re.I)
_CHANGING_PROGRAMS = frozenset(
    {"touch", "tee", "mv", "cp", "rm", "mkdir", "rmdir", "ln", "chmod", "patch", "truncate", "dd", "install"}
)
_EXIT = re.compile(r"(?:exit(?:ed)?(?: with)?[ _]?(?:code|status)|returncode)[\"'>:= ]*(-?\d+)", re.I)
_HEAD, _TAIL = 400, 200
"""Where in a result, in characters, harnesses put the exit code; what is between is the program's own output."""
_OPERATORS = frozenset({";", "&", "&&", "|", "||", "(", ")", ";;", "|&"})


@dataclass(frozen=True)
class Action:
    """A tool call that the policy sampled. `tools` are what it used: the tool's name, or a shell command's programs;
    `failed` is None if no result of it was seen; `misled` if it did not fail and holds what the task says misleads."""

    tools: frozenset[str]
    changes: bool
    failed: bool | None
    misled: bool = False


@dataclass(frozen=True)
class Trace:
    """What one attempt did. `malformed` of its `turns` were not in form."""

    succeeded: bool
    turns: int
    malformed: int
    actions: tuple[Action, ...]


@dataclass(frozen=True)
class Axes:
    """One attempt's behaviour, each in 0 to 1, higher is better, None where it is undefined."""

    tool_coverage: float | None
    self_verification: float | None
    error_recovery: float | None
    step_efficiency: float | None
    format_robustness: float | None


UNKNOWN = Axes(None, None, None, None, None)


def read_trace(calls: Iterable[Mapping[str, Any]], succeeded: bool, misleading: Sequence[str] = ()) -> Trace:
    """One attempt's trace from its rows of the `calls` table (`COLUMNS`). Side calls are no turns. `misleading` are the
    task's texts of results that are plain and wrong."""
    turns = [
        call
        for call in sorted(calls, key=lambda call: call["call"])
        if call["status"] == "ok" and not any(f.startswith("side_call") for f in call["findings"] or ())
    ]
    messages = [json.loads(call["messages_delta"] or "[]") for call in turns]
    results: dict[str, Mapping[str, Any]] = {}
    for message in (message for delta in messages for message in delta):
        if message["role"] == "tool" and message.get("tool_call_id"):
            results.setdefault(message["tool_call_id"], message)
    # A turn that opens a branch repeats the history; only its last message was sampled in it.
    sampled = [delta[-1] for delta in messages if delta and delta[-1]["role"] == "assistant"]
    actions = [_action(tool_call, results, misleading) for turn in sampled for tool_call in turn.get("tool_calls", ())]
    malformed = sum(bool(MALFORMED.intersection(call["findings"] or ())) for call in turns)
    return Trace(succeeded, len(turns), malformed, tuple(actions))


def axes(traces: Sequence[Trace]) -> list[Axes]:
    """The axes of the attempts at one task in one harness, in their order.

    Two of them compare an attempt with the successful ones among `traces` and are None where none succeeded.
    """
    solved = [trace for trace in traces if trace.succeeded]
    needed = frozenset.intersection(*(_used(trace) for trace in solved)) if solved else frozenset()
    fewest = min((len(trace.actions) for trace in solved), default=0)
    return [
        Axes(
            tool_coverage=len(needed & _used(trace)) / len(needed) if needed else None,
            self_verification=_self_verification(trace),
            error_recovery=_error_recovery(trace),
            step_efficiency=fewest / len(trace.actions) if trace.succeeded and trace.actions else None,
            format_robustness=1 - trace.malformed / trace.turns if trace.turns else None,
        )
        for trace in traces
    ]


def _used(trace: Trace) -> frozenset[str]:
    return frozenset(tool for action in trace.actions for tool in action.tools)


def _self_verification(trace: Trace) -> float | None:
    changes = [place for place, action in enumerate(trace.actions) if action.changes]
    if not changes:
        return None
    return float(any(action.failed is not None for action in trace.actions[changes[-1] + 1 :]))


def _error_recovery(trace: Trace) -> float | None:
    recovered = []
    for place, action in enumerate(trace.actions):
        if action.failed:
            later = trace.actions[place + 1 :]
            again = any(other.failed is False and other.tools & action.tools for other in later)
            recovered.append(again or (trace.succeeded and bool(later)))
        elif action.misled:  # to use the tool again shows nothing: it would mislead again
            recovered.append(trace.succeeded)
    return sum(recovered) / len(recovered) if recovered else None


def _action(call: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]], misleading: Sequence[str]) -> Action:
    name = call["name"]
    given = _arguments(call.get("arguments") or "")
    result = results.get(call.get("id") or "")
    failed = None if result is None else result_failed(result)
    misled = result is not None and not failed and any(text in result.get("content", "") for text in misleading)
    command = given.get("command", given.get("cmd"))
    if name in SHELL_TOOLS and command:
        programs, changes = read_command(command)
        return Action(programs, changes, failed, misled)
    # An editor with sub-commands (`view`, `create`, ...) changes things by some of them only.
    verb = command if isinstance(command, str) else name
    return Action(frozenset({name}), bool(_CHANGES.search(verb)), failed, misled)


def _arguments(text: str) -> Mapping[str, Any]:
    try:
        given = json.loads(text)
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


def result_failed(message: Mapping[str, Any]) -> bool:
    """Whether a tool's result says that it failed: the dialect's own mark, or an exit code that is not 0."""
    if "tool_error" in message.get("flags", ()):
        return True
    text = message.get("content", "")
    ends = text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]}\n{text[-_TAIL:]}"
    code = _EXIT.search(ends)
    return code is not None and int(code[1]) != 0


def read_command(command: str | Sequence[str]) -> tuple[frozenset[str], bool]:
    """The programs that a shell command names, and whether it visibly changes files. A here-document is not read."""
    text = command if isinstance(command, str) else str(command[-1])
    text = text.split("<<")[0].replace("\n", ";")
    try:
        words = list(shlex.shlex(text, posix=True, punctuation_chars=True))
    except ValueError:  # a quote is open: the shell refuses it too
        words = text.split()[:1]
    programs: list[str] = []
    changes = False
    first = True
    for place, word in enumerate(words):
        if word in _OPERATORS:
            first = True
        elif word in (">", ">>"):
            changes |= words[place + 1 : place + 2] != ["/dev/null"]
        elif first and not re.fullmatch(r"\w+=.*", word):
            programs.append(word.rsplit("/", 1)[-1])
            changes |= programs[-1] in _CHANGING_PROGRAMS
            first = False
        elif programs and programs[-1] in ("sed", "perl") and re.match(r"-\w*i", word):
            changes = True
    return frozenset(programs), changes
