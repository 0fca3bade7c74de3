"""The tree of one rollout's calls: which recorded call a new request continues, and with which tokens.

A request continues the call whose messages, reply included, equal the request's leading messages by value
(`conversation.canonical`), under the same tools. It then keeps that call's tokens, sampled ones included, and only
what is new is encoded. Otherwise it starts anew with a full render. The harness's own ids are asked for one thing only:
of two sub-agents that were asked the same and said the same, each goes on from its own call.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proxy_addons.conversation import Message
from proxy_addons.conversation import Request
from proxy_addons.conversation import canonical
from proxy_addons.rendering import Ids
from proxy_addons.rendering import Rendering


@dataclass(frozen=True, eq=False)
class Node:
    """One answered call. It holds what is new in it, so that a rollout costs the length of its text, not its square:
    its prompt is the first `prefix_len` tokens of its parent (prompt and sampled) and `delta_ids`."""

    call: int
    parent: "Node | None"
    prefix_len: int
    delta_ids: Ids
    sampled_ids: Ids

    def tokens(self) -> Ids:
        """Its prompt and what was sampled."""
        parts: list[Ids] = []
        node, end = self, self.prefix_len + len(self.delta_ids) + len(self.sampled_ids)
        while True:
            own = end - node.prefix_len  # how many of this node's own tokens are in the whole
            if own > 0:
                parts += [node.sampled_ids[: max(own - len(node.delta_ids), 0)], node.delta_ids[:own]]
                end = node.prefix_len
            if node.parent is None or not end:
                return np.concatenate(parts[::-1])
            node = node.parent


@dataclass(frozen=True, eq=False)
class Placement:
    """Where a request stands. `prompt_ids` are the first `prefix_len` tokens of the parent, and the rest is new.

    `request_key` is equal for a request that is sent again; `new_messages` are those the parent does not hold.
    `whole_prefix`: this call keeps every token of its parent, so that both fit in one row.
    """

    parent: Node | None
    prompt_ids: Ids
    prefix_len: int
    whole_prefix: bool
    new_messages: tuple[Message, ...]
    tools_digest: str
    position: int
    findings: tuple[str, ...]
    request: Request

    @property
    def delta_ids(self) -> Ids:
        return self.prompt_ids[self.prefix_len :]

    @property
    def request_key(self) -> str:
        return str(self.position)


class Trajectory:
    """The calls of one rollout so far.

    Messages are interned in a tree: a position is a sequence of messages under a set of tools, and equal sequences
    have one position. To find it takes one look-up a message, and no text is kept twice.
    """

    def __init__(self, rendering: Rendering) -> None:
        self._rendering = rendering
        self._positions: dict[tuple[int | str, Any], int] = {}
        self._nodes: dict[int, dict[str | None, Node]] = {}
        self._last: tuple[Node, Ids] | None = None  # the node added last, which is mostly the next one's parent

    async def place(self, request: Request) -> Placement:
        """Find the call that `request` continues and the tokens to ask the policy with."""
        digest = self._rendering.digest(request.tools)
        path = list(self._path(digest, request))
        parent, known = self._longest(request, path)
        new = request.messages[known:]
        findings = list(request.notes)
        before = self._tokens(parent) if parent is not None else None
        extended = None
        if parent is not None and before is not None and new:
            extended = self._rendering.extend(before, len(parent.sampled_ids), new, request.tools)
        if extended is not None and before is not None:
            delta, forged = extended
            ids, prefix, whole = np.concatenate([before, delta]), len(before), True
        else:
            ids, forged = await self._rendering.render_apart(request.messages, request.tools)
            prefix, whole = 0, False
            if before is not None:
                prefix = _common_prefix(before, ids)
                whole = prefix == len(before)
                if not whole:
                    findings.append("prefix_break")
        notes = tuple(dict.fromkeys([*findings, *forged]))
        return Placement(parent, ids, prefix, whole, new, digest, path[-1], notes, request)

    def add(self, placement: Placement, reply: Message, call: int, sampled: Sequence[int]) -> None:
        """Remember an answered call, so that the next request can continue it. A re-asked call takes over."""
        # Copies: a view would keep the whole prompt alive.
        delta, own = placement.delta_ids.copy(), np.asarray(sampled, dtype=np.int32)
        node = Node(call, placement.parent, placement.prefix_len, delta, own)
        position = self._next(placement.position, reply, placement.request)
        self._nodes.setdefault(position, {})[placement.request.agent] = node
        self._last = (node, np.concatenate([placement.prompt_ids, own]))

    def _tokens(self, node: Node) -> Ids:
        if self._last is not None and self._last[0] is node:
            return self._last[1]
        return node.tokens()

    def _longest(self, request: Request, path: Sequence[int]) -> tuple[Node | None, int]:
        """The agent's own call, or where it has none (it was forked from another's history) the one that it was
        forked from."""
        for length in range(len(path), 0, -1):
            nodes = self._nodes.get(path[length - 1])
            if nodes is not None and request.messages[length - 1].role == "assistant":
                return nodes.get(request.agent) or next(iter(nodes.values())), length
        return None, 0

    def _path(self, start: str, request: Request) -> Iterator[int]:
        position: int | str = start
        for message in request.messages:
            position = self._next(position, message, request)
            yield position

    def _next(self, position: int | str, message: Message, request: Request) -> int:
        """The position one message further. Arguments are parsed only in a spelling that is seen for the first time."""
        found = self._positions.get((position, message.spelled))
        if found is None:
            schemas = {tool.name: tool.parameters for tool in request.tools}
            value = (position, ("value", canonical(message, schemas)))
            found = self._positions.setdefault(value, len(self._positions))
            self._positions[position, message.spelled] = found
        return found


def _common_prefix(before: Ids, ids: Ids) -> int:
    length = min(len(before), len(ids))
    different = np.flatnonzero(before[:length] != ids[:length])
    return int(different[0]) if len(different) else length
