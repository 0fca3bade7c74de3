"""What was read before is not read again: a conversation comes back whole at every turn, and its tools with it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from typing import TypeVar

import orjson
from cachetools import LRUCache

T = TypeVar("T")

REMEMBERED_BYTES = 32 << 20
"""How much JSON is remembered, over all rollouts."""
LARGEST_BYTES = REMEMBERED_BYTES >> 6
"""A longer value (an image) is read each time."""


@dataclass(frozen=True)
class _Read:
    value: Any
    notes: tuple[str, ...]
    size: int


_known: LRUCache[tuple[Any, bytes], _Read] = LRUCache(REMEMBERED_BYTES, getsizeof=lambda known: known.size)


def remembered(read: Callable[[Any, str, list[str]], T], value: Any, where: str, notes: list[str]) -> T:
    """`read(value, where, notes)`, from memory if the same JSON was read before. What it returns must not be changed.

    `read` adds findings to `notes`, and raises `Problem` naming `where`; a refusal is not remembered.
    """
    text = _spelled(value)
    if text is None or len(text) > LARGEST_BYTES:
        return read(value, where, notes)
    known = _known.get((read, text))
    if known is None:
        own: list[str] = []
        known = _Read(read(value, where, own), tuple(own), len(text))
        _known[read, text] = known
    notes += known.notes
    result: T = known.value
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
