"""Checked reading of request bodies, shared by the dialects.

A value of the wrong type is a `Problem` that names its place in the body; what the policy cannot read becomes a
placeholder in the text and a flag on the message, never a silent gap (case O02).
"""

import json
import math
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from proxy_addons.conversation import Image
from proxy_addons.conversation import Problem
from proxy_addons.conversation import Tool
from proxy_addons.images import inline_image
from proxy_addons.images import linked_image
from proxy_addons.images import stand_in

_TEXT = {"text", "input_text", "output_text", "summary_text", "reasoning_text"}
_IMAGES = {"image", "input_image", "image_url"}
_MEDIA = {
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
    if not isinstance(value, dict):  # not Mapping: this is asked many times a call, and an ABC is slow to ask
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


@dataclass(frozen=True)
class Content:
    """What the policy reads of a content, the flags of what was substituted, and the images that it stands for."""

    text: str = ""
    flags: tuple[str, ...] = ()
    images: tuple[Image, ...] = ()


def joined(parts: Iterable[Content], separator: str = "\n") -> Content:
    """Contents as one. Empty texts leave no separator behind; each image keeps its place."""
    texts: list[str] = []
    flags: list[str] = []
    images: list[Image] = []
    start = 0
    for part in parts:
        flags += part.flags
        if part.text:
            images += [replace(image, at=start + image.at) for image in part.images]
            texts.append(part.text)
            start += len(part.text) + len(separator)
    return Content(separator.join(texts), tuple(flags), tuple(images))


def image_content(image: Image) -> Content:
    """An image as a text policy reads it."""
    text, flag = stand_in(image)
    return Content(text, (flag,), (image,))


def block_content(block: Mapping[str, Any], where: str, notes: list[str]) -> Content:
    """One content block. An unknown type is also noted."""
    kind = as_name(block.get("type"), f"{where}.type")
    if kind in _TEXT:
        return Content(as_text(block.get("text"), f"{where}.text"))
    if kind == "refusal":
        return Content(as_text(block.get("refusal"), f"{where}.refusal"))
    if kind == "tool_reference":
        name = as_name(block.get("tool_name"), f"{where}.tool_name")
        return Content(f"[tool available: {name}]", ("tool_reference",))
    if kind in _IMAGES:
        return image_content(_image(block, kind, where))
    if kind in _MEDIA:
        return Content(placeholder(_MEDIA[kind]), (f"{_MEDIA[kind]}_omitted",))
    notes.append(f"unknown_block:{kind[:40]}")
    return Content(placeholder(f"block of type {kind[:40]}"), ("unknown_block",))


def _image(block: Mapping[str, Any], kind: str, where: str) -> Image:
    """The image of a block: Anthropic's `source`, or the URL of Chat Completions and Responses."""
    if kind != "image":
        value, place = block.get("image_url"), f"{where}.image_url"
        if value is None and block.get("file_id") is not None:
            return Image(url="file:" + as_name(block["file_id"], f"{where}.file_id"))
        if isinstance(value, Mapping):
            value, place = value.get("url"), f"{place}.url"
        return linked_image(as_name(value, place), place)
    source = as_object(block.get("source"), f"{where}.source")
    given = source.get("type")
    if given == "base64":
        media_type = as_text(source.get("media_type"), f"{where}.source.media_type")
        return inline_image(as_name(source.get("data"), f"{where}.source.data"), media_type, f"{where}.source.data")
    if given == "url":
        return linked_image(as_name(source.get("url"), f"{where}.source.url"), f"{where}.source.url")
    if given == "file":
        return Image(url="file:" + as_name(source.get("file_id"), f"{where}.source.file_id"))
    raise refuse(f"{str(given)[:40]!r} is not one of base64, url, file", f"{where}.source.type")


def content_of(content: Any, where: str, notes: list[str]) -> Content:
    """A whole content, blocks joined by newlines.

    A string, null, an empty list and a list of empty texts are alike, so a harness that turns one spelling into
    another sends the same turn (case O10).
    """
    if content is None or isinstance(content, str):
        return Content(content or "")
    return joined(
        block_content(as_object(block, f"{where}[{i}]"), f"{where}[{i}]", notes)
        for i, block in enumerate(as_list(content, where))
    )
