"""A request's body: decompressed within a cap, and rid of the rollout's key.

Only the gateway reads bodies, so only after the addon has let the request through. mitmproxy's own decompression is not
used: it knows no cap, and takes a body that is cut short for plain.
"""

import asyncio
import zlib
from typing import Protocol

import zstandard

from proxy_addons.conversation import Problem

MAX_BODY_BYTES = 64 << 20
"""On the wire, and again when decompressed."""

# What is decompressed at a time. A zstd block of 4 bytes may hold 128 KiB, so one piece is at most 16 MiB.
_PIECE = 512
_MAX_ZSTD_WINDOW = 8 << 20  # what the format's specification asks every reader to support

CODINGS = ("gzip", "deflate", "zstd")


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


async def plain_body(body: bytes, coding: str, key: str, limit: int = MAX_BODY_BYTES) -> bytes:
    """The body as the harness meant it, with `key` taken out, so that no record can hold it (case O77). `coding` is its
    Content-Encoding.

    Raises `Problem`: `too_large` over `limit` bytes, compressed or not, and `bad_request` for a coding that is not of
    `CODINGS` or a body that ends early.
    """
    coding = coding.strip().lower()
    if coding != "identity" and body:
        body = await asyncio.to_thread(decompress, body, coding, limit)
    return body.replace(key.encode(), b"[rollout key]")


def decompress(data: bytes, coding: str, limit: int) -> bytes:
    """`data` decompressed; holds at most `limit` and one piece more (case O12). Raises as `plain_body`."""
    reader = _decompressor(coding, data)
    whole = bytearray()
    try:
        for start in range(0, len(data), _PIECE):
            whole += reader.decompress(data[start : start + _PIECE])
            if len(whole) > limit:
                raise _too_large(limit)
            if reader.eof and (reader.unused_data or start + _PIECE < len(data)):
                raise Problem("bad_request", f"the body goes on after the end of its {coding} data")
    except (zlib.error, zstandard.ZstdError) as error:
        raise Problem("bad_request", f"the body is not {coding}, which its Content-Encoding says it is") from error
    if not reader.eof:
        raise Problem("bad_request", f"the body ends before its {coding} data does")
    return bytes(whole)


def _decompressor(coding: str, data: bytes) -> _Decompressor:
    if coding == "gzip":
        return zlib.decompressobj(wbits=31)
    if coding == "deflate":
        # With a zlib header by the standard; some clients leave it out.
        return zlib.decompressobj(wbits=15 if data[0] & 15 == 8 and int.from_bytes(data[:2]) % 31 == 0 else -15)
    if coding == "zstd":
        return zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW).decompressobj()
    raise Problem(
        "bad_request", f"Content-Encoding {coding[:40]!r} is not read here; send {', '.join(CODINGS)} or none"
    )


def _too_large(limit: int) -> Problem:
    return Problem("too_large", f"the body is larger than {limit >> 20} MiB")
