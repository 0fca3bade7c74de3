"""Dialects: one module each, found here by name. Adding one is adding a file and its name below.

A dialect module offers the functions of `Dialect`; the gateway calls nothing else.
"""

import re
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any
from typing import Literal
from typing import Protocol
from typing import cast

from proxy_addons.conversation import Problem
from proxy_addons.conversation import Reply
from proxy_addons.conversation import Request
from proxy_addons.dialects.memory import Memory

NAMES = ("anthropic_messages", "openai_responses", "openai_chat", "gemini")

Purpose = Literal["generate", "stream", "count"]


class Stream(Protocol):
    """One event stream in a dialect. Each method returns the bytes to send now; order: start, keepalive*, then
    reply or error. `start` may be empty; `keepalive` must count as data for the harnesses that speak the dialect."""

    def start(self) -> bytes: ...

    def keepalive(self) -> bytes: ...

    def reply(self, reply: Reply) -> Iterator[bytes]: ...

    def error(self, problem: Problem) -> bytes: ...


class Dialect(Protocol):
    """What a dialect module offers (module-level functions and constants).

    `PATHS` are below the rollout's URL prefix and take POST: "generate" is answered as the body asks, "stream" always
    by a stream, "count" by the length of the prompt. `{model}` in a path stands for the model's name. `parse` raises
    `Problem`; `memory` is the rollout's.
    """

    NAME: str
    PATHS: dict[str, Purpose]

    def parse(self, body: Mapping[str, Any], headers: Mapping[str, str], memory: Memory | None = None) -> Request: ...

    def reply_json(self, request: Request, reply: Reply) -> dict[str, Any]: ...

    def open_stream(self, request: Request, reply_id: str, created: int) -> Stream: ...

    def count_json(self, tokens: int) -> dict[str, Any]: ...

    def error_json(self, problem: Problem) -> dict[str, Any]: ...


def load_dialects() -> dict[str, Dialect]:
    """Every dialect by name."""
    return {name: cast(Dialect, import_module(f"{__name__}.{name}")) for name in NAMES}


@dataclass(frozen=True)
class Route:
    """What a path asks for, and the model that it names."""

    dialect: Dialect
    purpose: Purpose
    model: str | None = None


def find_route(path: str) -> Route | None:
    """The route of a path below the rollout prefix; None if no dialect serves it."""
    for pattern, dialect, purpose in _patterns():
        if found := pattern.fullmatch(path):
            return Route(dialect, purpose, found.groupdict().get("model"))
    return None


@cache
def _patterns() -> list[tuple[re.Pattern[str], Dialect, Purpose]]:
    return [
        (re.compile(re.escape(path).replace(r"\{model\}", "(?P<model>[^/:]+)")), dialect, purpose)
        for dialect in load_dialects().values()
        for path, purpose in dialect.PATHS.items()
    ]
