"""A container's memory limit, kept by the kernel where control groups can be made: real OOM kills."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from kubernetes.utils.quantity import parse_quantity

from tasks.sandboxes import cgroups
from tests.kube.objects import Object

PARENT = "openforge-test"
_V2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
_ROOT = Path("/sys/fs/cgroup") if _V2 else Path("/sys/fs/cgroup/memory")
_LIMITS = ("memory.max",) if _V2 else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")


def enforced() -> bool:
    return "memory" in cgroups.available() and cgroups.writable()


def group(name: str, container: Object) -> str | None:
    """Make the group of a container that has a limit and return its path; None where there is nothing to keep."""
    limit = container.get("resources", {}).get("limits", {}).get("memory")
    if limit is None or not enforced():
        return None
    path = f"{PARENT}/{name.replace('/', '.')}"
    (_ROOT / path).mkdir(parents=True)
    for part in (_ROOT, _ROOT / PARENT) if _V2 else ():
        (part / "cgroup.subtree_control").write_text("+memory")
    for file in _LIMITS:
        if (_ROOT / path / file).exists():
            (_ROOT / path / file).write_text(str(int(parse_quantity(limit))))
    return path


def inside(path: str, argv: list[str]) -> list[str]:
    """The command that joins the group before it is `argv`."""
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(_ROOT / path / "cgroup.procs"), *argv]


async def close(path: str) -> bool:
    """Kill what is left in the group and remove it; True if the kernel killed one of its processes for memory."""
    killed, folder = cgroups.oom_kills(path) > 0, _ROOT / path
    async with asyncio.timeout(10):
        while folder.exists():
            for process in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            # A process that was killed is in its group until it is really gone.
            with contextlib.suppress(OSError):
                folder.rmdir()
            await asyncio.sleep(0.01)
    with contextlib.suppress(OSError):  # another container's group is still in there
        (_ROOT / PARENT).rmdir()
    return killed
