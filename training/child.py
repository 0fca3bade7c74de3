"""A child process that cannot outlive us: its own group, a log file, and the kernel's parent-death signal."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# A program of its own, for a few milliseconds, and no `preexec_fn`: that would run in a fork of us, with the hooks that
# libraries have for forks and without the threads that they count on. One of those crashed there.
_DIE_WITH_PARENT = """\
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):  # it died before the line above
    sys.exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""
_PORTS = range(20_000, 32_768)
"""Below what Linux gives to connections: one of those could be taken again before a server listens there."""
_CHANCE = random.SystemRandom()  # a run's seed must not choose them: its parts would try the same


@dataclass(frozen=True)
class Child:
    """A started process and its log."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def last_lines(self, count: int = 5) -> str:
        """The end of its log, for an error message."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-count:]) or f"its log {self.log} is empty"

    def stop(self, grace_s: float = 5.0) -> None:
        """End the whole process group, politely first."""
        for signum, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
            try:
                os.killpg(self.process.pid, signum)
            except ProcessLookupError:
                break
            try:
                self.process.wait(wait_s)
            except subprocess.TimeoutExpired:
                continue
        self.process.wait()


def start_child(
    argv: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path | None = None, *, talk: bool = False
) -> Child:
    """Start `argv` with both outputs appended to `log`. It is killed by the kernel if we die. With `talk` its standard
    input and output are pipes to us instead.

    Call it from a thread that lives as long as the child should: the kernel's signal follows the thread.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *argv],
            stdin=subprocess.PIPE if talk else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talk else sink,
            stderr=sink,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    return Child(process, log)


def free_port() -> int:
    """A TCP port on loopback that is free now."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """That many different TCP ports on loopback that are free now; of those that the system gives to no connection."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            probe, port = stack.enter_context(socket.socket()), _CHANCE.choice(_PORTS)
            with contextlib.suppress(OSError):  # it is taken
                probe.bind(("127.0.0.1", port))
                found.append(port)
    return found
