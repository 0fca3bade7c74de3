"""bubblewrap: sandboxes for a user without root. Namespaces hold, limits of memory and CPU do not."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import time

import psutil

from tasks.sandboxes import PYTHON
from tasks.sandboxes import WORKSPACE
from tasks.sandboxes import Outcome
from tasks.sandboxes import Spec
from tasks.sandboxes import local
from tasks.sandboxes.local import UID
from tasks.sandboxes.local import Box
from tasks.sandboxes.local import Usage
from tasks.sandboxes.mounts import links
from tasks.sandboxes.mounts import plan


def missing() -> str | None:
    """Why bubblewrap cannot be used here, with the remedy; None if it can."""
    if not shutil.which("bwrap"):
        return "bwrap is not installed: apt install bubblewrap"
    probe = subprocess.run(
        ["bwrap", "--unshare-all", "--ro-bind", "/", "/", PYTHON, "-ISBc", ""], capture_output=True, text=True
    )
    if probe.returncode != 0:
        return f"bwrap cannot make namespaces here ({probe.stderr.strip()}); allow unprivileged user namespaces"
    return None


def build(settings: object = None) -> "Bubblewrap":
    """The backend."""
    return Bubblewrap()


class Bubblewrap:
    """The sandbox's user is the calling user, seen as user 1000."""

    name = "bubblewrap"

    async def run(self, spec: Spec) -> Outcome:
        return await local.run(self, spec)

    def not_enforced(self) -> list[str]:
        limits = ["memory", "cpus", "total disk of the workspace", "system call filter"]
        # The kernel never counts root's processes against a limit.
        return [*limits, "pids"] if os.geteuid() == 0 else limits

    def reap(self, prefix: str) -> list[str]:
        gone = []
        for name, path in list(local.boxes()):
            if name.startswith(prefix):
                for process in psutil.process_iter(["name", "cmdline"]):
                    if process.info["name"] == "bwrap" and f"{path}/control" in (process.info["cmdline"] or []):
                        _kill_tree(process.pid)
                shutil.rmtree(path)
                gone.append(name)
        return gone

    def owner(self) -> int:
        return os.geteuid()

    def command(self, box: Box) -> list[str]:
        mounts = [
            text
            for mount in plan(box.spec, box.control, box.etc)
            for text in ("--bind" if mount.writable else "--ro-bind", str(mount.source), mount.target)
        ]
        symlinks = [text for path, target in links().items() for text in ("--symlink", target, path)]
        tmp_bytes = str(box.spec.memory_mb << 20)
        return [
            "bwrap",
            "--unshare-all",
            "--unshare-user",
            "--disable-userns",
            "--die-with-parent",
            "--new-session",
            "--as-pid-1",
            "--uid",
            str(UID),
            "--gid",
            str(UID),
            "--hostname",
            "sandbox",
            *("--cap-drop", "ALL"),
            *("--proc", "/proc"),
            *("--dev", "/dev"),
            *("--size", tmp_bytes, "--tmpfs", "/tmp"),
            *mounts,
            *symlinks,
            *("--remount-ro", "/"),
            *("--chdir", WORKSPACE),
            "--",
            *box.init(max_processes=box.spec.pids),
        ]

    def env(self, box: Box) -> dict[str, str]:
        # By the environment and not by --setenv: the key must not be seen in the machine's process list.
        return box.env()

    async def kill(self, box: Box, process: asyncio.subprocess.Process) -> None:
        _kill_tree(process.pid)

    def usage(self, box: Box) -> Usage:
        return Usage()

    async def clean(self, box: Box) -> None:
        return None


def _kill_tree(pid: int) -> None:
    """Kill the sandbox's pid 1, which takes its namespace along; bwrap waits for that and ends by itself.

    bwrap is stopped meanwhile: killed between the birth of its child and their first words, it would leave a child
    that waits for ever.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        outer = psutil.Process(pid)
        outer.suspend()
        while outer.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            time.sleep(0.001)
        inner = outer.children()
        for process in inner or [outer]:
            process.kill()
        outer.resume()
