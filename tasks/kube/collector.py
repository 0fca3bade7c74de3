"""Where pods get their files and leave their results: a small HTTP server of the orchestrator's.

    GET  /pods/{name}/input     a tar with the pod's folders, one top folder each
    PUT  /pods/{name}/result    a tar with record.json, stdout, stderr and the folders that come back

A pod shows its own key (a bearer token that only its sidecar can read); an unknown name is 404, a wrong key 401. A
result is taken whole or not at all: it is received in a temporary file of bounded size (in memory while it is small),
and counts when its end has come; a second one is answered and changes nothing. No result is ever read from pod logs or
through exec (cases O47, O48).
"""

import asyncio
import hmac
import io
import json
import os
import secrets
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from typing import Any

from aiohttp import web

from proxy_addons.errors import InfrastructureError
from tasks.kube.sidecar import add_folder

Inputs = Mapping[str, Path | Mapping[str, str]]
"""Top folder → a folder of this machine, or names and texts of files."""

_CHUNK = 1 << 18
_IN_MEMORY = 1 << 17


@dataclass
class Expected:
    """One pod's place. `record` is there as soon as the whole result lies in `result`; `news` is set then."""

    key: str
    inputs: Inputs
    max_bytes: int
    news: asyncio.Event
    record: dict[str, Any] | None = None
    result: IO[bytes] | None = None


class Collector:
    """Listens at (host, port), 0 for any free one; `folder` is for what is on its way."""

    def __init__(self, listen: tuple[str, int], folder: Path) -> None:
        self._listen = listen
        self._folder = folder
        self._expected: dict[str, Expected] = {}
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def __aenter__(self) -> "Collector":
        self._folder.mkdir(parents=True, exist_ok=True)
        app = web.Application()
        app.add_routes([web.get("/pods/{name}/input", self._input), web.put("/pods/{name}/result", self._result)])
        app.add_routes([web.get("/health", self._health)])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, *self._listen).start()
        except OSError as error:
            raise InfrastructureError(f"the collector cannot listen at {self._listen}: {error}") from None
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner
        await self._runner.cleanup()

    def expect(self, name: str, inputs: Inputs, max_bytes: int, news: asyncio.Event) -> Expected:
        """Make the pod `name`'s paths and key valid until `forget`."""
        self._expected[name] = expected = Expected(secrets.token_urlsafe(32), inputs, max_bytes, news)
        return expected

    def forget(self, name: str) -> None:
        """The key is void, and what the pod sent is removed."""
        expected = self._expected.pop(name)
        if expected.result:
            expected.result.close()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    def _known(self, http: web.Request) -> Expected:
        expected = self._expected.get(http.match_info["name"])
        if expected is None:
            raise web.HTTPNotFound(text="no such pod is expected")
        shown = http.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(shown.encode(), expected.key.encode()):
            raise web.HTTPUnauthorized(text="wrong key")
        return expected

    def _temporary(self) -> IO[bytes]:
        return tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=str(self._folder))

    async def _input(self, http: web.Request) -> web.StreamResponse:
        expected = self._known(http)
        with self._temporary() as file:
            data = await asyncio.to_thread(_pack, expected.inputs, file)
            response = web.StreamResponse(headers={"Content-Length": str(file.seek(0, os.SEEK_END))})
            file.seek(len(data))
            await response.prepare(http)
            while data:
                await response.write(data)
                data = await asyncio.to_thread(file.read, _CHUNK) if len(data) == _CHUNK else b""
            return response

    async def _result(self, http: web.Request) -> web.Response:
        expected = self._known(http)
        if (http.content_length or 0) > expected.max_bytes:
            raise web.HTTPRequestEntityTooLarge(expected.max_bytes, http.content_length or 0)
        file = self._temporary()
        try:
            size = 0
            async for data in http.content.iter_chunked(_CHUNK):
                size += len(data)
                if size > expected.max_bytes:
                    raise web.HTTPRequestEntityTooLarge(expected.max_bytes, size)
                if size <= _IN_MEMORY:
                    file.write(data)
                else:
                    await asyncio.to_thread(file.write, data)
            # A thread costs more than to read what is in memory.
            record = _record(file) if size <= _IN_MEMORY else await asyncio.to_thread(_record, file)
            # While it was on its way its pod may have been given up, or an earlier answer lost on the way back.
            if self._expected.get(http.match_info["name"]) is not expected:
                raise web.HTTPNotFound(text="no such pod is expected any more")
            if expected.record is None:
                expected.record, expected.result, file = record, file, self._temporary()
                expected.news.set()
            return web.Response(text="kept")
        finally:
            file.close()


def _record(result: IO[bytes]) -> dict[str, Any]:
    result.seek(0)
    try:
        with tarfile.open(fileobj=result, mode="r:") as tar:
            return dict(json.loads(_file(tar, "record.json")))
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise web.HTTPBadRequest(text=f"no result: {error}") from None


def _pack(inputs: Inputs, file: IO[bytes]) -> bytes:
    """Write the tar to `file`; returns its first piece."""
    with tarfile.open(fileobj=file, mode="w") as tar:
        for top, content in inputs.items():
            if isinstance(content, Path):
                add_folder(tar, top, str(content))
                continue
            for name, text in content.items():
                member = tarfile.TarInfo(f"{top}/{name}")
                member.size = len(text.encode())
                tar.addfile(member, io.BytesIO(text.encode()))
    file.seek(0)
    return file.read(_CHUNK)


def unpack(result: IO[bytes], log_dir: Path, folders: Mapping[str, Path]) -> None:
    """Put a result where its spec wants it, in place of what is in those folders.

    What an agent left is untrusted: nothing is written through a link or outside its folder, and links come last.
    Raises InfrastructureError for a result that cannot be read.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    try:
        for folder in folders.values():
            _empty(folder)
        result.seek(0)
        with tarfile.open(fileobj=result, mode="r:") as tar:
            members = tar.getmembers()
            for name in ("stdout", "stderr"):
                (log_dir / name).write_bytes(_file(tar, name))
            for member in sorted(members, key=lambda member: member.issym()):
                top, _, rest = member.name.partition("/")
                if top in folders and rest:
                    _place(tar, member, folders[top], rest)
    except (tarfile.TarError, KeyError, ValueError, OSError) as error:
        raise InfrastructureError(f"the pod's result cannot be read: {error}") from error


def _empty(folder: Path) -> None:
    """Cheaper than a new folder in its place: on most file systems to remove one costs more than all the rest."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def _file(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is no plain file")
    return file.read()


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, rest: str) -> None:
    if member.issym():
        # As it was, wherever it leads: who reads the workspace does not follow it, and says where it led.
        if ".." in Path(rest).parts or not (folder / rest).parent.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{member.name} leads out of its folder")
        os.symlink(member.linkname, folder / rest)
    elif member.isfifo():
        os.mkfifo(folder / rest)
    elif member.isreg() or member.isdir():
        mode = (member.mode & 0o755) | (0o700 if member.isdir() else 0o600)
        tar.extract(member.replace(name=rest, mode=mode, deep=False), folder, filter="data")
    else:
        raise ValueError(f"{member.name} is of a kind that no pod sends")
