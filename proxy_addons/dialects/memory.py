"""What was read before is not read again: a conversation comes back whole at every turn, and its tools with it."""

import marshal
from collections.abc import Callable
from typing import Any
from typing import TypeVar

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
        spelled = _spelled(value)
        if spelled is None or len(spelled) > LARGEST_BYTES:
            return read(value, where, notes)
        known = self._known.get((read, spelled))
        if known is None:
            own: list[str] = []
            known = read(value, where, own), tuple(own)
            self._known[read, spelled] = known
        notes += known[1]
        result: T = known[0]
        return result


def _spelled(value: Any) -> bytes | None:
    """Bytes that only equal values have: 1 is not 1.0, and the order of keys counts. None where it is nested too deep.

    (JSON would have to be searched for what it writes in the same way, which takes ten times as long as to write this.)
    """
    try:
        return marshal.dumps(value, 2)  # later versions write a reference where an object comes twice
    except ValueError:
        return None
