"""The few facts about control groups that a backend needs, for both versions of them."""

import os
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "cpu", "pids")


def available() -> set[str]:
    """Which of memory, cpu and pids can be limited on this machine."""
    unified = _ROOT / "cgroup.controllers"
    if unified.exists():
        return set(CONTROLLERS) & set(unified.read_text().split())
    return {name for name in CONTROLLERS if (_ROOT / name / "cgroup.procs").exists()}


def writable() -> bool:
    """Whether groups can be made here; inside most containers they cannot."""
    return os.access(_ROOT if (_ROOT / "cgroup.controllers").exists() else _ROOT / "memory", os.W_OK)


def swap_limit() -> bool:
    """Whether swap can be limited too; without it a memory limit only holds where no swap is."""
    return (_ROOT / "cgroup.controllers").exists() or (_ROOT / "memory/memory.memsw.limit_in_bytes").exists()


def cpu_s(path: str) -> float | None:
    """CPU seconds used by the group at `path` ("/a/b"); None if it is not counted."""
    v1, v2 = _ROOT / "cpuacct" / path.lstrip("/") / "cpuacct.usage", _ROOT / path.lstrip("/") / "cpu.stat"
    if v1.exists():
        return int(v1.read_text()) / 1e9
    if v2.exists():
        return _fields(v2)["usage_usec"] / 1e6
    return None


def oom_kills(path: str) -> int:
    """How many processes of the group the kernel killed at its memory limit."""
    v1, v2 = _ROOT / "memory" / path.lstrip("/") / "memory.oom_control", _ROOT / path.lstrip("/") / "memory.events"
    for file in (v1, v2):
        if file.exists():
            return _fields(file)["oom_kill"]
    return 0


def _fields(file: Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())}
