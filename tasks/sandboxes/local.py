"""What the local backends share: start one sandbox, watch it, end all of it, say how it ended."""

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any
from typing import Protocol

from proxy_addons.errors import InfrastructureError
from tasks.kube.sidecar import walk
from tasks.sandboxes import HOME
from tasks.sandboxes import PYTHON
from tasks.sandboxes import Outcome
from tasks.sandboxes import Reason
from tasks.sandboxes import Spec
from tasks.sandboxes.bridge import Bridge
from tasks.sandboxes.capture import capture
from tasks.sandboxes.capture import last_lines
from tasks.sandboxes.mounts import INSIDE
from tasks.sandboxes.mounts import write_etc
from tasks.uncancelled import to_the_end

UID = 1000
MAX_FILE_BYTES = 1 << 30
_ENV = {
    "HOME": HOME,
    "USER": "agent",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}


@dataclass(frozen=True)
class Box:
    """The host's folder for one running sandbox. Its path is short: a unix socket's may have 107 bytes."""

    path: Path
    spec: Spec

    @property
    def control(self) -> Path:
        return self.path / "control"

    @property
    def etc(self) -> Path:
        return self.path / "etc"

    def env(self) -> dict[str, str]:
        return {**_ENV, **self.spec.env}

    def init(self, max_processes: int) -> list[str]:
        """The command line of the sandbox's first process."""
        ways = ",".join(self.spec.ways())
        script = f"{INSIDE}/init.py"
        return [PYTHON, "-ISB", script, ways, str(max_processes), str(MAX_FILE_BYTES), *self.spec.argv]

    def report(self) -> dict[str, Any]:
        """What `init.py` said; its lines merged. The sandbox's user can write there: a torn line is no line."""
        said: dict[str, Any] = {}
        try:
            lines = (self.control / "report").read_text(errors="replace").splitlines()
        except FileNotFoundError:
            raise InfrastructureError(f"sandbox {self.spec.name}: another process removed it") from None
        for line in lines:
            with contextlib.suppress(ValueError):
                fields = json.loads(line)
                if isinstance(fields, dict):
                    said |= fields
        return said


@dataclass(frozen=True)
class Usage:
    """What the kernel counted; None where it was not asked to."""

    cpu_s: float | None = None
    oom_kills: int = 0


class Runtime(Protocol):
    """The part that differs: one class per program that builds sandboxes."""

    def owner(self) -> int:
        """The user id that the sandbox's user has on the host."""

    def command(self, box: Box) -> list[str]:
        """The program to start; its standard streams become the sandbox's."""

    def env(self, box: Box) -> dict[str, str]:
        """The environment of that program."""

    async def kill(self, box: Box, process: asyncio.subprocess.Process) -> None:
        """Kill everything in the sandbox, so that `process` ends."""

    def usage(self, box: Box) -> Usage:
        """Read after the end and before `clean`."""

    async def clean(self, box: Box) -> None:
        """Remove what the program keeps outside the box's folder."""


async def run(runtime: Runtime, spec: Spec) -> Outcome:
    """`Sandbox.run` over `runtime`."""
    box = _open(spec, runtime.owner())
    life = _Life(runtime, box)
    try:
        await to_the_end(life.start())
        reason = await life.wait()
    finally:
        # Also when cancelled, and cancelled again: no process may outlive this call. Nor may a start be cut short:
        # asyncio would kill bwrap alone, and the child it has just made would wait for ever.
        await to_the_end(life.end())
    return life.outcome(reason)


@dataclass
class _Life:
    runtime: Runtime
    box: Box
    process: asyncio.subprocess.Process | None = None
    bridges: dict[str, Bridge] = field(default_factory=dict)
    captures: list[asyncio.Task[None]] = field(default_factory=list)
    started_at: float = field(default_factory=time.monotonic)
    wall_s: float = 0.0
    usage: Usage = Usage()
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def stdout(self) -> Path:
        return self.box.spec.log_dir / "stdout"

    @property
    def stderr(self) -> Path:
        return self.box.spec.log_dir / "stderr"

    async def start(self) -> None:
        for way, address in self.box.spec.ways().items():
            self.bridges[way] = Bridge(self.box.control / f"{way}.sock", address)
            await self.bridges[way].start()
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            *self.runtime.command(self.box), env=self.runtime.env(self.box), stdin=pipe, stdout=pipe, stderr=pipe
        )
        assert self.process.stdout and self.process.stderr
        self.captures = [
            asyncio.create_task(capture(self.process.stdout, self.stdout)),
            asyncio.create_task(capture(self.process.stderr, self.stderr)),
        ]

    async def wait(self) -> Reason | None:
        """The reason why it must be ended now, or None if it ended by itself."""
        assert self.process
        spec, ended = self.box.spec, asyncio.create_task(self.process.wait())
        proxy = self.bridges.get("proxy")
        if spec.first_call_s is not None and proxy:
            called = asyncio.create_task(proxy.called.wait())
            limit = min(spec.first_call_s, spec.wall_s)
            await asyncio.wait({ended, called}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            called.cancel()
            if not ended.done() and not proxy.called.is_set():
                return "no_call" if spec.first_call_s < spec.wall_s else "timeout"
        await asyncio.wait({ended}, timeout=spec.wall_s - (time.monotonic() - self.started_at))
        return None if ended.done() else "timeout"

    async def end(self) -> None:
        try:
            if self.process:
                if self.process.returncode is None:
                    await self.runtime.kill(self.box, self.process)
                await self.process.wait()
                await asyncio.gather(*self.captures)
            self.wall_s = time.monotonic() - self.started_at
            self.usage = self.runtime.usage(self.box)
            self.report = self.box.report()
        finally:
            for bridge in self.bridges.values():
                await bridge.stop()
            await self.runtime.clean(self.box)
            if self.box.path.exists():
                shutil.rmtree(self.box.path)

    def outcome(self, ended_by_us: Reason | None) -> Outcome:
        assert self.process
        if not self.report.get("started"):
            raise InfrastructureError(
                f"sandbox {self.box.spec.name}: it did not start (exit {self.process.returncode}): "
                f"{last_lines(self.stderr) or 'no message'}"
            )
        reason, code, detail = self._ended(ended_by_us)
        cpu_s = self.report.get("cpu_s") if self.usage.cpu_s is None else self.usage.cpu_s
        return Outcome(code, reason, detail, self.wall_s, cpu_s, self.stdout, self.stderr)

    def _ended(self, ended_by_us: Reason | None) -> tuple[Reason, int | None, str]:
        spec, said = self.box.spec, self.report
        code, signal = said.get("code"), said.get("signal")
        kills = f"{self.usage.oom_kills} process(es) killed at the memory limit of {spec.memory_mb} MB"
        if ended_by_us == "timeout":
            return "timeout", None, f"killed after {spec.wall_s:g} s"
        if ended_by_us == "no_call":
            screen = last_lines(self.stdout) or last_lines(self.stderr)
            return "no_call", None, f"no model call within {spec.first_call_s:g} s; its last lines: {screen or 'none'}"
        if said.get("start_failed"):
            return "start_failed", None, str(said["start_failed"])
        if self.usage.oom_kills and code != 0:
            return "oom", code, kills
        if code is not None:
            return "exited", code, kills if self.usage.oom_kills else ""
        if signal is not None:
            return "killed", None, f"ended by signal {signal}"
        return "killed", None, "the sandbox was killed from outside"


def boxes() -> Iterator[tuple[str, Path]]:
    """(sandbox name, folder) of every box on this machine, live or left behind."""
    for path in sorted(_home().iterdir()):
        name = path / "name"
        if name.exists():
            yield name.read_text(), path


def _home() -> Path:
    """Where the boxes are. In the shared /tmp somebody else could have made it first: only our own will do."""
    path = Path(tempfile.gettempdir()) / f"openforge-{os.geteuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.geteuid():
        raise InfrastructureError(f"sandbox: {path} belongs to somebody else; remove it or set TMPDIR")
    return path


def _open(spec: Spec, owner: int) -> Box:
    spec.log_dir.mkdir(parents=True, exist_ok=True)
    box = Box(Path(tempfile.mkdtemp(dir=_home(), prefix="")), spec)
    (box.path / "name").write_text(spec.name)
    write_etc(box.etc)
    box.control.mkdir()
    shutil.copy(Path(__file__).with_name("init.py"), box.control / "init.py")
    (box.control / "report").touch()
    if os.geteuid() == 0:
        os.chown(box.control / "report", owner, owner)
        for folder in (spec.workspace, spec.home, *spec.binds_rw.values()):
            give(folder, owner)
    return box


def give(folder: Path, owner: int) -> None:
    """Make `owner` the owner of a folder and of all in it. Only the folder itself may be behind a link."""
    os.chown(folder, owner, owner)
    for name in walk(str(folder)):
        os.lchown(os.path.join(folder, name), owner, owner)
