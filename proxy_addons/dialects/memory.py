"""What was read before is not read again: a conversation comes back whole at every turn, and its tools with it."""

import json
from collections.abc import Callable
from typing import Any
from typing import TypeVar

import orjson

T = TypeVar("T")

LARGEST_BYTES = 1 << 20
"""A longer value (an image) is read each time."""


class Memory:
    """One rollout's, as long as it lives. It costs about as much as the conversation's text."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, bytes], tuple[Any, tuple[str, ...]]] = {}

    def read(self, read: Callable[[Any, str, list[str]], T], value: Any, where: str, notes: list[str]) -> T:
        """`read(value, where, notes)`, remembered if the same JSON was read before. Its result must not be changed.

        `read` adds findings to `notes`, and raises `Problem` naming `where`; a refusal is not remembered.
        """
        text = _spelled(value)
        if text is None or len(text) > LARGEST_BYTES:
            return read(value, where, notes)
        known = self._known.get((read, text))
        if known is None:
            own: list[str] = []
            known = read(value, where, own), tuple(own)
            self._known[read, text] = known
        notes += known[1]
        result: T = known[0]
        return result


def _spelled(value: Any) -> bytes | None:
    """A text that only equal values have: 1 is not 1.0, and the order of keys counts. None where there is no such."""
    try:
        text = orjson.dumps(value)
    except TypeError:  # a whole number of more than 64 bits, or half a surrogate pair
        return None
    if b"null" in text:  # orjson also writes an infinity so (1e999)
        return json.dumps(value).encode()
    return text
