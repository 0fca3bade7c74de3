"""The one conversation form that every dialect is read into and answered from.

A dialect turns a request body into a `Request`; the gateway turns sampled tokens into a `Reply`; the dialect
writes the `Reply` in its own shape. Nothing here knows HTTP or tokens.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
from functools import cached_property
from typing import Any
from typing import ClassVar
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "tool_calls", "length"]

TOOL_ERROR_MARK = "[tool error]\n"
"""Put before a failed tool's output, so that the policy can tell failure from success (case O03)."""

IMAGE_OMITTED = "[image omitted: this policy reads text only]"
IMAGE_LINKED = "[image at a URL omitted: it was not fetched]"
IMAGE_SHOWN = "[image]"
"""What stands in a message's text where an image was: not seen, not fetched, seen (case O02)."""


@dataclass(frozen=True)
class ToolCall:
    """`arguments` is JSON text exactly as sampled or sent; a custom (freeform) tool's is `{"input": text}`."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Image:
    """An image in a message: its content by hash, or only the `url` where nothing was fetched.

    `at` is the place in the message's `content`, in characters, where the text that stands for it begins; `shown` says
    whether the policy sees it. `size` and `data` are the decoded bytes; `data` goes into no record.
    """

    sha256: str = ""
    media_type: str = ""
    size: int = 0
    url: str = ""
    at: int = 0
    shown: bool = False
    data: bytes = field(default=b"", repr=False, compare=False)

    @property
    def identity(self) -> str:
        """Equal for the same picture, however it was spelled."""
        return self.sha256 or self.url


@dataclass(frozen=True)
class Message:
    """One turn. `content` is the text the policy reads; `flags` says what was substituted to make it so."""

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    flags: tuple[str, ...] = ()
    images: tuple[Image, ...] = ()

    @cached_property
    def spelled(self) -> tuple[Any, ...]:
        """What `canonical` is made of, in this message's own spelling: equal for two messages only if that is."""
        calls = tuple([(call.name, call.arguments) for call in self.tool_calls])
        return (self.role, self.content, calls, tuple([image.identity for image in self.images]))


_STORED = tuple(f.name for f in fields(Message))


@dataclass(frozen=True)
class Tool:
    """A tool as the policy sees it. `kind` says how the dialect must spell a call of it on the wire."""

    name: str
    description: str
    parameters: dict[str, Any]
    kind: Literal["function", "custom"] = "function"
    namespace: str | None = None


@dataclass(frozen=True)
class Request:
    """What the harness asked, free of its dialect.

    `max_tokens` None means no limit was asked for. `agent` is the harness's own id of a sub-agent, if it names
    one; it is provenance and never identifies the rollout. `notes` are findings of the translation.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    model: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = True
    agent: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Usage:
    """Token counts; `cached_tokens` of the `prompt_tokens` came from a prefix cache (None: unknown)."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None


@dataclass(frozen=True)
class Reply:
    """What the policy said, free of any dialect."""

    id: str
    model: str
    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish: Finish
    usage: Usage
    created: int
    stop_sequence: str | None = None

    def message(self) -> Message:
        """The assistant turn that the harness is expected to send back."""
        return Message("assistant", self.content, self.reasoning, self.tool_calls)


@dataclass(eq=False)
class Problem(Exception):
    """A refusal in plain words. `kind` is one of the keys below; each dialect spells it its own way.

    `bad_request` 400, `context_length` 400, `unauthorized` 401, `not_found` 404, `too_large` 413,
    `budget` 429, `overloaded` 529 (engine away), `internal` 500.
    """

    kind: str
    message: str
    param: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    STATUS: ClassVar[dict[str, int]] = {
        "bad_request": 400,
        "context_length": 400,
        "unauthorized": 401,
        "not_found": 404,
        "too_large": 413,
        "budget": 429,
        "overloaded": 529,
        "internal": 500,
    }

    @property
    def status(self) -> int:
        return self.STATUS[self.kind]

    def __str__(self) -> str:
        return self.message


def canonical_arguments(text: str) -> Any:
    """The value of JSON arguments, strict enough that only spelling may differ (case O28).

    Spaces, escapes and key order do not matter. `1` and `1.0`, `1e3` and `1000.0`, and a dropped duplicate key do.
    Text that is not JSON stands for itself.
    """

    try:
        return _freeze(_SPELLED.decode(text))
    except (ValueError, RecursionError):
        return ("text", text)


def _pairs(items: list[tuple[str, Any]]) -> Any:
    return ("object", tuple(sorted(items, key=lambda kv: (kv[0], repr(kv[1])))))


def _freeze(value: Any) -> Any:
    if isinstance(value, list):
        return ("array", tuple(_freeze(v) for v in value))
    if isinstance(value, tuple) and value[0] == "object":
        return ("object", tuple((k, _freeze(v)) for k, v in value[1]))
    return value


def _number(text: str) -> Any:
    return ("number", text)


_SPELLED = json.JSONDecoder(object_pairs_hook=_pairs, parse_int=_number, parse_float=_number)


def without_defaults(value: Any, schema: Any) -> Any:
    """Canonical arguments without those that equal their default in the tool's JSON schema, at any depth.

    Claude Code sends a call back with the defaults filled in (`replace_all: false` of its Edit tool): same call.
    """
    if not isinstance(schema, Mapping) or not isinstance(value, tuple):
        return value
    if value[0] == "array":
        return ("array", tuple(without_defaults(item, schema.get("items")) for item in value[1]))
    known = schema.get("properties")
    if value[0] != "object" or not isinstance(known, Mapping):
        return value
    kept = []
    for name, given in value[1]:
        rule = known.get(name)
        if (
            isinstance(rule, Mapping)
            and "default" in rule
            and given == canonical_arguments(json.dumps(rule["default"]))
        ):
            continue
        kept.append((name, without_defaults(given, rule)))
    return ("object", tuple(kept))


def canonical(message: Message, schemas: Mapping[str, Any] | None = None) -> Any:
    """What must be equal for two messages to be the same turn: no ids, no reasoning, no spelling, no defaults; images
    by content.

    Reasoning is left out because many harnesses drop it when they send a turn back; the recorded tokens keep it.
    `schemas` are the JSON schemas of the tools' arguments by the tools' names.
    """
    schemas = schemas or {}
    calls = tuple(
        (c.name, without_defaults(canonical_arguments(c.arguments), schemas.get(c.name))) for c in message.tool_calls
    )
    return (message.role, message.content, calls, tuple([image.identity for image in message.images]))


def message_json(message: Message) -> dict[str, Any]:
    """A message as it is stored: only what it has, and references to its images."""
    # Not by `asdict`, which copies all there is and takes ten times as long.
    stored = {name: value for name in _STORED if (value := getattr(message, name)) not in ("", (), None)}
    if message.tool_calls:
        stored["tool_calls"] = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in message.tool_calls]
    if message.images:
        stored["images"] = [_reference(image) for image in message.images]
    return stored


def _reference(image: Image) -> dict[str, Any]:
    what = {"url": image.url} if image.url else {"sha256": image.sha256, "media_type": image.media_type}
    return {**what, "size": image.size, "at": image.at, "shown": image.shown}
