"""O12: a compressed body is the same request; one that is broken, or a bomb, is refused in one clear line."""

import asyncio
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard

from proxy_addons.body import MAX_BODY_BYTES
from tests.support import speakers
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving

JSON = {"content-type": "application/json"}


def bomb(coding: str) -> bytes:
    """About a megabyte or less that spells a gigabyte of zeros."""
    if coding == "zstd":
        writer = zstandard.ZstdCompressor().compressobj()
        block = writer.compress(bytes(1 << 20)) + writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        more = writer.compress(bytes(1 << 20)) + writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        return block + more * 1023
    deflate = zlib.compressobj(wbits=31 if coding == "gzip" else 15)
    head = deflate.compress(bytes(1 << 20)) + deflate.flush(zlib.Z_FULL_FLUSH)
    # After a full flush nothing refers back, so the same bytes may follow again and again.
    return head + (deflate.compress(bytes(1 << 20)) + deflate.flush(zlib.Z_FULL_FLUSH)) * 1023


@pytest.mark.parametrize("name", speakers.NAMES)
async def test_o12_four_spellings_of_one_request(toy_model: Path, tokenizer: Any, tmp_path: Path, name: str) -> None:
    plain = json.dumps(speakers.body(name, ["価格は5円🎉 " * 200])).encode()
    raw = zlib.compressobj(wbits=-15)
    spellings = [
        ({}, plain),
        ({"content-encoding": "identity"}, plain),
        ({"content-encoding": "gzip"}, gzip.compress(plain)),
        ({"content-encoding": "deflate"}, zlib.compress(plain)),
        ({"content-encoding": "deflate"}, raw.compress(plain) + raw.flush()),
        ({"content-encoding": "ZSTD"}, zstandard.compress(plain)),
    ]
    async with (
        serving(ScriptedEngine(lambda prompt, n: tokenizer.encode("Hi.<|im_end|>"))) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            for headers, content in spellings:
                answer = await client.post(speakers.path(name), content=content, headers=JSON | headers)
                assert answer.status_code == 200, answer.text
        _, rows = await proxy.end(rollout)
    assert len({tuple(asked["token_ids"]) for asked in engine.asked}) == 1
    assert len({row["request_sha"] for row in rows}) == 1


@pytest.mark.parametrize("name", speakers.NAMES)
async def test_o12_what_is_refused(toy_model: Path, tmp_path: Path, name: str) -> None:
    plain = json.dumps(speakers.body(name, ["hi " * 20_000])).encode()
    refused = [
        ("zstd", zstandard.compress(plain)[:-3], 400, "ends before"),
        ("gzip", gzip.compress(plain)[:-9], 400, "ends before"),
        ("deflate", zlib.compress(plain)[:-5], 400, "ends before"),
        ("gzip", gzip.compress(plain) + b"more", 400, "goes on after"),
        ("gzip", plain, 400, "is not gzip"),
        ("zstd", b"", 400, "not JSON"),
        ("br", plain, 400, "'br' is not read here"),
        ("gzip, zstd", plain, 400, "is not read here"),
        ("gzip", bomb("gzip"), 413, "larger than 64 MiB"),
        ("deflate", bomb("deflate"), 413, "larger than 64 MiB"),
        ("zstd", bomb("zstd"), 413, "larger than 64 MiB"),
    ]
    async with (
        serving(ScriptedEngine(lambda prompt, n: [9])) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            for coding, content, status, message in refused:
                headers = JSON | {"content-encoding": coding}
                answer = await client.post(speakers.path(name), content=content, headers=headers)
                assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True), coding
        summary, _ = await proxy.end(rollout)
    assert (summary["calls"], engine.asked) == (0, [])


async def test_o12_nothing_is_decompressed_for_a_stranger(toy_model: Path, tmp_path: Path) -> None:
    async with (
        serving(ScriptedEngine(lambda prompt, n: [9])) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout, "not-the-key") as client:
            headers = JSON | {"content-encoding": "gzip"}
            answer = await client.post("/v1/messages", content=bomb("gzip"), headers=headers)
        await proxy.end(rollout)
    assert answer.status_code == 401


async def test_o12_a_body_too_large_as_it_comes_is_refused_before_it_is_read(toy_model: Path, tmp_path: Path) -> None:
    async with (
        serving(ScriptedEngine(lambda prompt, n: [9])) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        head = f"POST /r/{rollout}/v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: {MAX_BODY_BYTES + 1}\r\n\r\n"
        writer.write(head.encode())
        status = await reader.readline()
        writer.close()
        await proxy.end(rollout)
    assert status.split()[1] == b"413"
