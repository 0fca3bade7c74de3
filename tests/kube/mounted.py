"""Pods as local processes that see their volumes where they mount them, and only each other, by bubblewrap: what is
written in files counts too. The rest of this machine stays as it is."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.kube.processes import Command
from tests.kube.processes import Processes

ROOT = Path(__file__).resolve().parents[2]
HOME = "/home/pod"
"""The home of a container that sets none."""


class Mounted(Processes):
    """A command that can't be started is an exit code here, not a StartError: bubblewrap is what was started."""

    def _command(self, inside: Command, paths: Mapping[str, Path]) -> Command:
        seen = {HOME: inside.home} | dict(paths)
        argv = ["bwrap", "--tmpfs", "/", *_host("/", seen)]
        for path in sorted(seen):
            argv += ["--bind", str(seen[path].resolve()), path]
        for own in (ROOT, Path(sys.prefix)):  # the images' code and interpreter, also where a volume would hide them
            if any(str(own).startswith(path + "/") for path in seen):
                argv += ["--ro-bind", str(own), str(own)]
        # Processes of its own: what test.sh leaves running is looked for among all of them.
        argv += ["--unshare-pid", "--as-pid-1", "--proc", "/proc", "--chdir", inside.cwd or HOME, "--", *inside.argv]
        return Command(argv, {"HOME": HOME} | inside.env, "/", inside.home)

    def _first(self, process: asyncio.subprocess.Process) -> int:
        """bubblewrap waits for its only child, and does not pass signals on."""
        with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended just now
            return next((child.pid for child in psutil.Process(process.pid).children()), process.pid)
        return process.pid


def _host(folder: str, paths: Mapping[str, Path]) -> Iterator[str]:
    """This machine's files as mounts, entry by entry where a path lies below, so that no mount point is made on it."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.path in paths:
            continue
        if entry.is_symlink():
            yield from ("--symlink", os.readlink(entry.path), entry.path)
        elif any(path.startswith(entry.path + "/") for path in paths):
            yield from ("--dir", entry.path)
            yield from _host(entry.path, paths)
        else:
            yield from ("--dev-bind-try", entry.path, entry.path)
