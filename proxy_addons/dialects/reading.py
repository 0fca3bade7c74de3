"""Checked reading of request bodies, shared by the dialects.

A value of the wrong type is a `Problem` that names its place in the body; what the policy cannot read becomes a
placeholder in the text and a flag on the message, never a silent gap (case O02).
"""

import json
import math
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from proxy_addons.conversation import Problem
from proxy_addons.conversation import Tool

_TEXT = {"text", "input_text", "output_text", "summary_text", "reasoning_text"}
_MEDIA = {
    "image": "image",
    "input_image": "image",
    "image_url": "image",
    "document": "document",
    "file": "document",
    "input_file": "document",
    "input_audio": "audio",
}


INVALID_ARGUMENTS = "invalid_arguments"
"""Where a call's arguments are an object on the wire, sampled ones that are none travel as the one value of this key:
the harness's own validation then fails the call, and the turn comes back as it was sampled."""


def refuse(message: str, param: str) -> Problem:
    """A `bad_request` that names the field `param`."""
    return Problem("bad_request", f"{param}: {message}", param=param)


def as_list(value: Any, where: str) -> list[Any]:
    """`value` as a list; null and absent are empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise refuse("must be a list", where)
    return value


def as_object(value: Any, where: str) -> Mapping[str, Any]:
    """`value` as a JSON object."""
    if not isinstance(value, Mapping):
        raise refuse("must be an object", where)
    return value


def as_text(value: Any, where: str) -> str:
    """`value` as a string; null and absent are empty."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise refuse("must be a string", where)
    return value


def as_name(value: Any, where: str) -> str:
    """`value` as a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise refuse("must be a non-empty string", where)
    return value


def number(body: Mapping[str, Any], key: str) -> float | None:
    """An optional number of the body."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise refuse("must be a number", key)
    return float(value)


def count(body: Mapping[str, Any], key: str) -> int | None:
    """An optional number of tokens, at least 1."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refuse("must be a whole number of at least 1", key)
    return value


def strings(value: Any, where: str) -> tuple[str, ...]:
    """A string, a list of strings or null as a tuple of the strings that are not empty."""
    entries = [value] if isinstance(value, str) else as_list(value, where)
    return tuple(text for i, entry in enumerate(entries) if (text := as_text(entry, f"{where}[{i}]")))


def header(headers: Mapping[str, str], name: str) -> str | None:
    """A header by its lower-case name, whatever the spelling; None if absent or empty."""
    return next((value for key, value in headers.items() if key.lower() == name and value), None)


def offered_tools(tools: Iterable[Tool], choice: Any, notes: list[str]) -> tuple[Tool, ...]:
    """The tools that the policy is shown under the harness's `choice`.

    "none" withholds all for this call: `tools_withheld`. To force a call would take a grammar, under which the policy's
    log-probabilities are not its own; so that wish goes unheeded, and is noted: `tool_choice_ignored`.
    """
    offered = tuple(tools)
    if str(choice).lower() == "none" and choice is not None:
        notes += ["tools_withheld"] if offered else []
        return ()
    if choice is not None and str(choice).lower() not in ("auto", "validated"):
        notes.append("tool_choice_ignored")
    return offered


def dump(value: Any) -> str:
    """JSON text of a value that the harness sent."""
    return json.dumps(value, ensure_ascii=False)


def object_in(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` spells, or None: not JSON, not an object, or with NaN or an infinity in it."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def arguments_text(value: Any) -> str:
    """A call's arguments, an object on the wire, as the text that was sampled or sent."""
    if isinstance(value, dict) and set(value) == {INVALID_ARGUMENTS} and isinstance(value[INVALID_ARGUMENTS], str):
        return value[INVALID_ARGUMENTS]
    return dump({} if value is None else value)


def arguments_object(text: str) -> tuple[dict[str, Any], str]:
    """Sampled arguments as an object for the wire, and the text that spells it."""
    value = object_in(text)
    if value is not None:
        return value, text
    value = {INVALID_ARGUMENTS: text}
    return value, dump(value)


def placeholder(kind: str) -> str:
    """What the policy reads in place of something that is not text."""
    return f"[{kind} omitted: this policy reads text only]"


def block_text(block: Mapping[str, Any], where: str, notes: list[str]) -> tuple[str, tuple[str, ...]]:
    """The text of one content block and the flags of what was substituted. An unknown type is also noted."""
    kind = as_name(block.get("type"), f"{where}.type")
    if kind in _TEXT:
        return as_text(block.get("text"), f"{where}.text"), ()
    if kind == "refusal":
        return as_text(block.get("refusal"), f"{where}.refusal"), ()
    if kind == "tool_reference":
        return f"[tool available: {as_name(block.get('tool_name'), f'{where}.tool_name')}]", ("tool_reference",)
    if kind in _MEDIA:
        return placeholder(_MEDIA[kind]), (f"{_MEDIA[kind]}_omitted",)
    notes.append(f"unknown_block:{kind[:40]}")
    return placeholder(f"block of type {kind[:40]}"), ("unknown_block",)


def content_text(content: Any, where: str, notes: list[str]) -> tuple[str, tuple[str, ...]]:
    """A whole content as text, blocks joined by newlines, with its flags.

    A string, null, an empty list and a list of empty texts are alike, so a harness that turns one spelling into
    another sends the same turn (case O10).
    """
    if content is None or isinstance(content, str):
        return content or "", ()
    parts: list[str] = []
    flags: list[str] = []
    for i, block in enumerate(as_list(content, where)):
        text, block_flags = block_text(as_object(block, f"{where}[{i}]"), f"{where}[{i}]", notes)
        flags.extend(block_flags)
        if text:
            parts.append(text)
    return "\n".join(parts), tuple(flags)
