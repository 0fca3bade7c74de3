"""The tree of one rollout's calls: which recorded call a new request continues, and with which tokens.

A request continues the call whose messages, reply included, equal the request's leading messages by value
(`conversation.canonical`), under the same tools. It then keeps that call's tokens, sampled ones included, and only
what is new is encoded. Otherwise it starts anew with a full render. The harness's own ids are asked for one thing only:
of two sub-agents that were asked the same and said the same, each goes on from its own call.
"""

import hashlib
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proxy_addons.conversation import Message
from proxy_addons.conversation import Request
from proxy_addons.conversation import Tool
from proxy_addons.conversation import canonical
from proxy_addons.records import to_json
from proxy_addons.rendering import Rendering


@dataclass(frozen=True)
class Node:
    """One answered call."""

    call: int
    prompt_ids: list[int]
    sampled_ids: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """Where a request stands. `prompt_ids == (parent prompt + parent sampled)[:prefix_len] + delta_ids`.

    `request_key` is equal for a request that is sent again; `new_messages` are those the parent does not hold.
    """

    parent: Node | None
    prompt_ids: list[int]
    prefix_len: int
    new_messages: tuple[Message, ...]
    request_key: str
    findings: tuple[str, ...]
    request: Request

    @property
    def delta_ids(self) -> list[int]:
        return self.prompt_ids[self.prefix_len :]

    @property
    def whole_prefix(self) -> bool:
        """Whether this call keeps every token of its parent, so that both fit in one row."""
        parent = self.parent
        return parent is not None and self.prefix_len == len(parent.prompt_ids) + len(parent.sampled_ids)


class Trajectory:
    """The calls of one rollout so far."""

    def __init__(self, rendering: Rendering) -> None:
        self._rendering = rendering
        self._by_key: dict[bytes, dict[str | None, Node]] = {}

    def place(self, request: Request) -> Placement:
        """Find the call that `request` continues and the tokens to ask the policy with."""
        keys = _prefix_keys(request.messages, request.tools)
        parent, known = self._longest(request.messages, keys, request.agent)
        new = request.messages[known:]
        findings = list(request.notes)
        extended = None
        if parent is not None and new:
            extended = self._rendering.extend(parent.prompt_ids, parent.sampled_ids, new, request.tools)
            if extended is None:
                findings.append("prefix_break")
        ids, forged = extended or self._rendering.render(request.messages, request.tools)
        prefix = _common_prefix(parent, ids) if parent is not None else 0
        found = tuple(dict.fromkeys([*findings, *forged]))
        return Placement(parent, ids, prefix, new, keys[-1].hex(), found, request)

    def add(self, placement: Placement, reply: Message, node: Node) -> None:
        """Remember an answered call, so that the next request can continue it. A re-asked call takes over."""
        request = placement.request
        key = _next_key(bytes.fromhex(placement.request_key), reply, _schemas(request.tools))
        self._by_key.setdefault(key, {})[request.agent] = node

    def _longest(
        self, messages: Sequence[Message], keys: Sequence[bytes], agent: str | None
    ) -> tuple[Node | None, int]:
        """The agent's own call, or where it has none (it was forked from another's history) the one that it was
        forked from."""
        for length in range(len(messages), 0, -1):
            if messages[length - 1].role == "assistant":
                nodes = self._by_key.get(keys[length])
                if nodes is not None:
                    return nodes.get(agent) or next(iter(nodes.values())), length
        return None, 0


def tools_digest(tools: Sequence[Tool]) -> str:
    """A name for the set of tools that a call offered."""
    text = to_json([[t.name, t.description, t.parameters, t.kind] for t in tools])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _prefix_keys(messages: Sequence[Message], tools: Sequence[Tool]) -> list[bytes]:
    """`keys[n]` names the first n messages under these tools; each is built from the one before."""
    keys = [tools_digest(tools).encode()]
    schemas = _schemas(tools)
    for message in messages:
        keys.append(_next_key(keys[-1], message, schemas))
    return keys


def _schemas(tools: Sequence[Tool]) -> dict[str, Any]:
    return {tool.name: tool.parameters for tool in tools}


def _next_key(key: bytes, message: Message, schemas: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(key + repr(canonical(message, schemas)).encode()).digest()


def _common_prefix(parent: Node, ids: list[int]) -> int:
    before = [*parent.prompt_ids, *parent.sampled_ids]
    if ids[: len(before)] == before:
        return len(before)
    return next((i for i, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), min(len(before), len(ids)))
