import json

import pytest

from proxy_addons.dialects.sse import PIECE
from proxy_addons.dialects.sse import event
from proxy_addons.dialects.sse import pieces


def test_event_is_one_line_of_ascii() -> None:
    data = event({"text": "a\n\nb — 🎉"}, name="ping")
    assert data.isascii()
    assert data.startswith(b"event: ping\ndata: ")
    assert data.endswith(b"\n\n")
    assert data.count(b"\n") == 3
    assert json.loads(data.split(b"data: ")[1]) == {"text": "a\n\nb — 🎉"}


def test_event_without_a_name() -> None:
    assert event({"a": 1}) == b'data: {"a":1}\n\n'


def test_event_refuses_what_is_not_json() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        event({"a": float("nan")})


@pytest.mark.parametrize("length", [0, 1, PIECE, PIECE + 1, 3 * PIECE])
def test_pieces_join_to_the_text(length: int) -> None:
    text = "🎉" * length
    parts = list(pieces(text))
    assert "".join(parts) == text
    assert all(0 < len(part) <= PIECE for part in parts)
