"""Dialects: one module each, found here by name. Adding one is adding a file and its name below.

A dialect module offers the functions of `Dialect`; the gateway calls nothing else.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from importlib import import_module
from typing import Any
from typing import Protocol
from typing import cast

from proxy_addons.conversation import Problem
from proxy_addons.conversation import Reply
from proxy_addons.conversation import Request

NAMES = ("anthropic_messages", "openai_responses", "openai_chat")


class Stream(Protocol):
    """One event stream in a dialect. Each method returns the bytes to send now; order: start, keepalive*, then
    reply or error. `start` may be empty; `keepalive` must count as data for the harnesses that speak the dialect."""

    def start(self) -> bytes: ...

    def keepalive(self) -> bytes: ...

    def reply(self, reply: Reply) -> Iterator[bytes]: ...

    def error(self, problem: Problem) -> bytes: ...


class Dialect(Protocol):
    """What a dialect module offers (module-level functions and constants).

    `GENERATE` paths are answered by a generation, `COUNT` paths by a prompt length; both are below the rollout's
    URL prefix and take POST. `parse` raises `Problem`.
    """

    NAME: str
    GENERATE: tuple[str, ...]
    COUNT: tuple[str, ...]

    def parse(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Request: ...

    def reply_json(self, request: Request, reply: Reply) -> dict[str, Any]: ...

    def open_stream(self, request: Request, reply_id: str, created: int) -> Stream: ...

    def count_json(self, tokens: int) -> dict[str, Any]: ...

    def error_json(self, problem: Problem) -> dict[str, Any]: ...


def load_dialects() -> dict[str, Dialect]:
    """Every dialect by name."""
    return {name: cast(Dialect, import_module(f"{__name__}.{name}")) for name in NAMES}


def routes() -> dict[str, tuple[Dialect, str]]:
    """Path below the rollout prefix → (dialect, "generate" or "count")."""
    table: dict[str, tuple[Dialect, str]] = {}
    for dialect in load_dialects().values():
        table |= dict.fromkeys(dialect.GENERATE, (dialect, "generate"))
        table |= dict.fromkeys(dialect.COUNT, (dialect, "count"))
    return table
