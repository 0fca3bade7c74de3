"""Server-sent events as bytes, the same for every dialect."""

import json
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

PIECE = 1000
"""Characters in one delta: far below the line limit of any client's event reader."""


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """One whole event. The JSON is plain ASCII, so that a network cut can never split a character (case O16)."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, allow_nan=False, separators=(',', ':'))}\n\n".encode("ascii")


def pieces(text: str) -> Iterator[str]:
    """`text` cut into deltas; nothing for an empty text."""
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))
