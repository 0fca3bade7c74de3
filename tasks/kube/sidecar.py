"""Runs beside the agent in its pod, from the sidecar image; Python's standard library only.

    sidecar.py fetch CONFIG     init container: download and unpack what the collector has for this pod
    sidecar.py serve CONFIG     container: carry, capture, limit, and upload the result at the end

CONFIG is a JSON object (`tasks.kube.manifest.sidecar_config`). The two sides of the control folder are named pipes:
`stdout`, `stderr` and `code` from the agent, `ended` to it. The agent has the folder read-only, so it can fill the
pipes and not replace them.
"""

import asyncio
import contextlib
import http.client
import io
import json
import os
import stat
import sys
import tarfile
import time
import urllib.parse
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

OUTPUTS = ("stdout", "stderr")
PIPES = (*OUTPUTS, "code", "ended")
HEAD, TAIL = 4 << 20, 1 << 20
TRY_AGAIN_S = 120.0
STOP_S = 15.0


def connect(config: dict[str, Any]) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
    """A connection to the collector, this pod's path there, and the headers that show its key."""
    url = urllib.parse.urlsplit(config["collector"])
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    with open(config["key_file"]) as file:
        headers = {"Authorization": f"Bearer {file.read().strip()}"}
    return kind(url.netloc, timeout=60), f"{url.path.rstrip('/')}/pods/{config['name']}", headers


def persist(ask: Callable[[], int]) -> None:
    """Call `ask` until it returns a status that is final; ends the process when it is a refusal or time is up."""
    deadline, pause = time.monotonic() + TRY_AGAIN_S, 0.2
    while True:
        try:
            status: object = ask()
        except (OSError, http.client.HTTPException, tarfile.TarError) as error:
            status = f"{type(error).__name__}: {error}"
        if isinstance(status, int) and status < 300:
            return
        refused = isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)
        if refused or time.monotonic() > deadline:
            sys.exit(f"openforge: the collector answered {status}")
        time.sleep(pause)
        pause = min(2 * pause, 10.0)


def fetch(config: dict[str, Any]) -> None:
    """Make the pipes and unpack the input; its top folders are named in `config["folders"]`."""

    def download() -> int:
        connection, path, headers = connect(config)
        with contextlib.closing(connection):
            connection.request("GET", f"{path}/input", headers=headers)
            answer = connection.getresponse()
            if answer.status == 200:
                with tarfile.open(fileobj=answer, mode="r|") as tar:
                    for member in tar:
                        top, _, rest = member.name.partition("/")
                        member.name = rest or "."
                        if rest:
                            tar.extract(member, config["folders"][top], filter="tar")
            return answer.status

    for name in PIPES:
        path = os.path.join(config["folders"]["control"], name)
        if not os.path.exists(path):
            os.mkfifo(path)
            os.chmod(path, 0o666)
    persist(download)


class Capture:
    """A pipe's first and last bytes, with a mark where something was cut between them."""

    def __init__(self) -> None:
        self.head, self.tail, self.total = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        """Take some more."""
        room = max(HEAD - self.total, 0)
        self.head += data[:room]
        self.tail += data[room:]
        self.total += len(data)
        if len(self.tail) > 2 * TAIL:
            del self.tail[:-TAIL]

    def content(self) -> bytes:
        """What was kept."""
        cut = self.total - HEAD - TAIL
        mark = f"\n[openforge: {cut} bytes cut here]\n".encode() if cut > 0 else b""
        return bytes(self.head) + mark + bytes(self.tail[-TAIL:] if cut > 0 else self.tail)


async def open_pipe(path: str) -> asyncio.StreamReader:
    """Open a pipe for reading; returns when the agent's shell has opened it too."""
    file = await asyncio.to_thread(open, path, "rb", 0)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader


async def drain(reader: asyncio.StreamReader, capture: Capture) -> None:
    """Capture one pipe to its end."""
    while data := await reader.read(65536):
        capture.add(data)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes one way and pass the end of the stream on."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


class Bridge:
    """127.0.0.1:`port` carried to the proxy, the agent's only way out."""

    def __init__(self, proxy: tuple[str, int]) -> None:
        self.proxy = proxy
        self.called = asyncio.Event()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection; when the proxy is away, hang up as it would."""
        self.called.set()
        try:
            out_reader, out_writer = await asyncio.open_connection(*self.proxy)
            try:
                await asyncio.gather(pump(reader, out_writer), pump(out_reader, writer))
            finally:
                out_writer.close()
        except OSError:
            writer.transport.abort()
        finally:
            writer.close()


async def watch(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Capture]]:
    """Be beside the agent until its last process is gone; how it ended, and its output."""
    control = config["folders"]["control"]
    captures = {name: Capture() for name in OUTPUTS}
    bridge = Bridge(tuple(config["proxy"])) if config["proxy"] else None
    if bridge:
        await asyncio.start_server(bridge.carry, "127.0.0.1", config["port"])
    # The agent's shell opens the same three in the same order before anything else: here its time starts.
    code, *readers = [await open_pipe(os.path.join(control, name)) for name in ("code", *OUTPUTS)]
    start = time.monotonic()
    outputs = [
        asyncio.create_task(drain(reader, captures[name])) for name, reader in zip(OUTPUTS, readers, strict=True)
    ]
    over = asyncio.create_task(code.read())
    reason = await in_time(config, start, over, bridge)
    if reason:
        await asyncio.to_thread(stop, os.path.join(control, "ended"))
    await asyncio.wait({over}, timeout=STOP_S)
    record: dict[str, Any] = {"reason": reason, "wall_s": time.monotonic() - start}
    if over.done():
        # Its first process is gone and took all others along, so the pipes come to their ends.
        await asyncio.wait(outputs, timeout=STOP_S)
        record["said"] = over.result().decode(errors="replace").strip()
    else:
        record["reason"] = "stuck"
    return record, captures


async def in_time(
    config: dict[str, Any], start: float, over: "asyncio.Task[bytes]", bridge: "Bridge | None"
) -> "str | None":
    """Wait for the agent's end or for the limit that ends it: `timeout` or `no_call`; None if it ended by itself."""
    wall_s, first_call_s = config["wall_s"], config["first_call_s"]
    if bridge and first_call_s is not None:
        called = asyncio.create_task(bridge.called.wait())
        await asyncio.wait({over, called}, timeout=min(first_call_s, wall_s), return_when=asyncio.FIRST_COMPLETED)
        called.cancel()
        if not over.done() and not bridge.called.is_set():
            return "no_call" if first_call_s < wall_s else "timeout"
    await asyncio.wait({over}, timeout=start + wall_s - time.monotonic())
    return None if over.done() else "timeout"


def stop(path: str) -> None:
    """Tell the agent's shell to end; it has nobody to tell if it ended just now."""
    with contextlib.suppress(OSError), open(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "wb", 0) as pipe:
        pipe.write(b"stop\n")


class Chunked(io.RawIOBase):
    """A file that sends what is written to it as the chunks of a request's body."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any) -> int:
        """Send one chunk."""
        if data:
            self.connection.send(b"%x\r\n" % len(data) + bytes(data) + b"\r\n")
        return len(data)


def walk(folder: str, bounds: "dict[str, int] | None" = None) -> Iterator[str]:
    """The paths below `folder`, relative to it, each after the folder that holds it. Links are not followed.

    Not os.walk, which recurses: an agent can nest folders deeper than Python's stack, and than a path may be long.
    `bounds` (`depth`, `path` in bytes, `files`) are those within which a workspace is scored; what passes one is still
    there, so that the verifier sees that it was passed, and nothing below or after it.
    """
    left, count = [""], 0
    while left:
        parent = left.pop()
        for name in sorted(os.listdir(os.path.join(folder, parent))):
            path = os.path.join(parent, name)
            yield path
            count += 1
            if bounds and count > bounds["files"]:
                return
            if bounds and (path.count("/") >= bounds["depth"] or len(os.fsencode(path)) > bounds["path"]):
                continue
            if stat.S_ISDIR(os.lstat(os.path.join(folder, path)).st_mode):
                left.append(path)


def make_readable(folder: str, bounds: "dict[str, int] | None") -> int:
    """Give ourselves, who own it, the right to read all below `folder`; returns the bytes in plain files."""
    total = 0
    for name in walk(folder, bounds):
        path = os.path.join(folder, name)
        found = os.lstat(path)
        if stat.S_ISDIR(found.st_mode):
            os.chmod(path, found.st_mode | 0o500)
        elif stat.S_ISREG(found.st_mode):
            total += found.st_size
            os.chmod(path, found.st_mode | 0o400)
    return total


def add_folder(tar: tarfile.TarFile, top: str, folder: str, bounds: "dict[str, int] | None" = None) -> None:
    """Add all below `folder` as `top`/...; of a file with two names, two files are made. Sockets are left out."""
    for name in walk(folder, bounds):
        path = os.path.join(folder, name)
        found = os.lstat(path)
        # Not `gettarinfo`, which looks up the names of user and group for each.
        member = tarfile.TarInfo(f"{top}/{name}")
        member.mode, member.mtime = stat.S_IMODE(found.st_mode), int(found.st_mtime)
        if stat.S_ISREG(found.st_mode):
            with open(path, "rb") as file:
                member.size = os.fstat(file.fileno()).st_size
                tar.addfile(member, file)
            continue
        if stat.S_ISDIR(found.st_mode):
            member.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(found.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
        elif stat.S_ISFIFO(found.st_mode):
            member.type = tarfile.FIFOTYPE
        else:
            continue
        tar.addfile(member)


def upload(config: dict[str, Any], record: dict[str, Any], captures: dict[str, Capture]) -> None:
    """Send record, output and the folders named in `config["results"]` as one tar."""
    results = {name: config["folders"][name] for name in config["results"]}
    bounds = config["bounds"]
    record["bytes"] = sum(make_readable(folder, bounds) for folder in results.values())
    if record["bytes"] > config["max_bytes"]:
        record["too_large"], results = True, {}

    def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))

    def send() -> int:
        connection, path, headers = connect(config)
        with contextlib.closing(connection):
            connection.putrequest("PUT", f"{path}/result")
            for name, value in {**headers, "Transfer-Encoding": "chunked"}.items():
                connection.putheader(name, value)
            connection.endheaders()
            # A pipe that breaks was refused before all was sent: the answer is there and says why.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                with tarfile.open(fileobj=Chunked(connection), mode="w|", bufsize=1 << 18) as tar:
                    add(tar, "record.json", json.dumps(record).encode())
                    for name in OUTPUTS:
                        add(tar, name, captures[name].content())
                    for name, folder in results.items():
                        add_folder(tar, name, folder, bounds)
                connection.send(b"0\r\n\r\n")
            return connection.getresponse().status

    persist(send)


def main() -> None:
    """One of the two commands."""
    config = json.loads(sys.argv[2])
    if sys.argv[1] == "fetch":
        fetch(config)
    else:
        upload(config, *asyncio.run(watch(config)))


if __name__ == "__main__":
    main()
