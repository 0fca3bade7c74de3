"""Keep a process's output in a file of bounded size that says where it was cut."""

import asyncio
from pathlib import Path

HEAD = 4 << 20
TAIL = 1 << 20


async def capture(stream: asyncio.StreamReader, path: Path, head: int = HEAD, tail: int = TAIL) -> None:
    """Write `stream` to `path`: its first `head` bytes and its last `tail` bytes, with a mark between them.

    The end matters as much as the beginning: harnesses print their verdict on themselves last.
    """
    kept, total = bytearray(), 0
    with path.open("wb", buffering=0) as file:
        while data := await stream.read(65536):
            room = max(head - total, 0)
            file.write(data[:room])
            kept += data[room:]
            total += len(data)
            if len(kept) > 2 * tail:
                del kept[:-tail]
        cut = total - head - tail
        if cut > 0:
            file.write(f"\n[openforge: {cut} bytes cut here]\n".encode())
            del kept[:-tail]
        file.write(kept)


def last_lines(path: Path, lines: int = 8, size: int = 2000) -> str:
    """The end of a captured output, for a message; "" if there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - size, 0))
        return "\n".join(file.read().decode(errors="replace").strip().splitlines()[-lines:])
