"""Captured output is bounded and says where it was cut."""

import asyncio
from pathlib import Path

import pytest

from tasks.sandboxes.capture import capture
from tasks.sandboxes.capture import last_lines


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (b"", b""),
        (b"0123456789", b"0123456789"),
        (b"0123456789abcde", b"0123456789abcde"),
        (b"0123456789abcdef", b"0123456789\n[openforge: 1 bytes cut here]\nbcdef"),
        (b"0123456789" + b"x" * 200_000 + b"abcde", b"0123456789\n[openforge: 200000 bytes cut here]\nabcde"),
    ],
)
async def test_head_and_tail_are_kept(data: bytes, kept: bytes, tmp_path: Path) -> None:
    stream = asyncio.StreamReader()
    stream.feed_data(data)
    stream.feed_eof()
    await capture(stream, tmp_path / "out", head=10, tail=5)
    assert (tmp_path / "out").read_bytes() == kept


def test_last_lines(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("".join(f"{n}\n" for n in range(1000)))
    assert last_lines(tmp_path / "out", lines=2) == "998\n999"
    assert last_lines(tmp_path / "none") == ""
