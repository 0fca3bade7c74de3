"""runc: the local backend for root. The kernel holds memory, CPU and process limits; no image, no daemon."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tasks.sandboxes import WORKSPACE
from tasks.sandboxes import Outcome
from tasks.sandboxes import Spec
from tasks.sandboxes import cgroups
from tasks.sandboxes import local
from tasks.sandboxes.local import UID
from tasks.sandboxes.local import Box
from tasks.sandboxes.local import Usage
from tasks.sandboxes.mounts import links
from tasks.sandboxes.mounts import plan

_STATE = Path("/run/openforge/runc")
_NAMESPACES = ("pid", "network", "ipc", "uts", "mount", "cgroup")
# Doors that a harness never needs: new namespaces, kernel keys, BPF, and address families that no network
# namespace confines (virtual machine sockets reach the host).
_DENIED = ["add_key", "bpf", "fsconfig", "fsmount", "fsopen", "init_module", "finit_module", "delete_module"]
_DENIED += ["io_uring_setup", "kexec_load", "kexec_file_load", "keyctl", "mount", "mount_setattr", "move_mount"]
_DENIED += ["open_by_handle_at", "open_tree", "perf_event_open", "pivot_root", "ptrace", "process_vm_readv"]
_DENIED += ["process_vm_writev", "request_key", "setns", "umount2", "unshare", "userfaultfd"]
_CLONE_NEWUSER = 0x10000000
_AF_ALG, _AF_VSOCK = 38, 40
_EPERM, _ENOSYS = 1, 38


def missing() -> str | None:
    """Why runc cannot be used here, with the remedy; None if it can."""
    if not shutil.which("runc"):
        return "runc is not installed: apt install runc"
    if not shutil.which("setpriv"):
        return "setpriv is not installed: apt install util-linux"
    if os.geteuid() != 0:
        return "runc needs root here; use bubblewrap"
    if not cgroups.writable():
        return "control groups cannot be made here (inside a container?); use bubblewrap"
    probe = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        return f"namespaces cannot be made here ({probe.stderr.strip()}); run outside a container"
    return None


def build(settings: object = None) -> "Runc":
    """The backend."""
    return Runc()


class Runc:
    """One OCI bundle a run, over the host's own files."""

    name = "runc"

    def __init__(self) -> None:
        self._limits = cgroups.available()

    async def run(self, spec: Spec) -> Outcome:
        return await local.run(self, spec)

    def not_enforced(self) -> list[str]:
        names = {"memory": "memory", "cpu": "cpus", "pids": "pids"}
        missing = [names[name] for name in cgroups.CONTROLLERS if name not in self._limits]
        return [*missing, "total disk of the workspace"]

    def reap(self, prefix: str) -> list[str]:
        gone = []
        for name, path in list(local.boxes()):
            if name.startswith(prefix):
                subprocess.run([*_runc(), "delete", "--force", path.name], capture_output=True)
                shutil.rmtree(path)
                gone.append(name)
        return gone

    def owner(self) -> int:
        return UID

    def command(self, box: Box) -> list[str]:
        root = box.path / "root"
        root.mkdir()
        for path, target in links().items():
            (root / path.lstrip("/")).symlink_to(target)
        (box.path / "config.json").write_text(json.dumps(_config(box, self._limits)))
        # --keep: the control group must still be there when we ask it what happened.
        run = [*_runc(), "run", "--keep", "--bundle", str(box.path), box.path.name]
        return ["setpriv", "--pdeathsig", "KILL", *run]

    def env(self, box: Box) -> dict[str, str]:
        return {"PATH": os.environ["PATH"]}

    async def kill(self, box: Box, process: asyncio.subprocess.Process) -> None:
        # Closing the lifeline first covers a container that runc has not finished making.
        assert process.stdin
        process.stdin.close()
        await _quiet(*_runc(), "kill", box.path.name, "KILL")

    def usage(self, box: Box) -> Usage:
        return Usage(cgroups.cpu_s(_cgroup(box)), cgroups.oom_kills(_cgroup(box)))

    async def clean(self, box: Box) -> None:
        await _quiet(*_runc(), "delete", "--force", box.path.name)


def _runc() -> list[str]:
    return ["runc", "--root", str(_STATE)]


def _cgroup(box: Box) -> str:
    return f"/openforge/{box.path.name}"


async def _quiet(*command: str) -> None:
    null = asyncio.subprocess.DEVNULL
    await (await asyncio.create_subprocess_exec(*command, stdin=null, stdout=null, stderr=null)).wait()


def _config(box: Box, limits: set[str]) -> dict[str, Any]:
    spec = box.spec
    nothing: list[str] = []
    binds = [
        {
            "destination": mount.target,
            "type": "bind",
            "source": str(mount.source),
            "options": ["bind", "nosuid", "nodev", "rw" if mount.writable else "ro"],
        }
        for mount in plan(spec, box.control, box.etc)
    ]
    return {
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "root": {"path": "root", "readonly": True},
        "process": {
            "terminal": False,
            "user": {"uid": UID, "gid": UID},
            "args": box.init(max_processes=0),
            "env": [f"{name}={value}" for name, value in box.env().items()],
            "cwd": WORKSPACE,
            "noNewPrivileges": True,
            "capabilities": dict.fromkeys(("bounding", "effective", "inheritable", "permitted", "ambient"), nothing),
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 16384, "soft": 16384}],
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
            _tmpfs("/dev", "mode=755", "size=64k", "noexec"),
            {
                "destination": "/dev/pts",
                "type": "devpts",
                "source": "devpts",
                "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
            },
            _tmpfs("/dev/shm", "mode=1777", "size=64m", "noexec", "nodev"),
            _tmpfs("/tmp", "mode=1777", f"size={spec.memory_mb}m", "nodev"),
            *binds,
        ],
        "linux": {
            "namespaces": [{"type": name} for name in _NAMESPACES],
            "cgroupsPath": _cgroup(box),
            "resources": _resources(spec, limits),
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/acpi"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
            "seccomp": _seccomp(),
        },
    }


def _tmpfs(target: str, *options: str) -> dict[str, Any]:
    return {"destination": target, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", *options]}


def _resources(spec: Spec, limits: set[str]) -> dict[str, Any]:
    wanted: dict[str, Any] = {"devices": [{"allow": False, "access": "rwm"}]}
    if "memory" in limits:
        memory = spec.memory_mb << 20
        wanted["memory"] = {"limit": memory, "swap": memory} if cgroups.swap_limit() else {"limit": memory}
    if "cpu" in limits:
        wanted["cpu"] = {"period": 100_000, "quota": int(spec.cpus * 100_000)}
    if "pids" in limits:
        wanted["pids"] = {"limit": spec.pids}
    return wanted


def _seccomp() -> dict[str, Any]:
    def deny(names: list[str], *args: dict[str, Any], error: int = _EPERM) -> dict[str, Any]:
        return {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": error, "args": list(args)}

    new_user = {"index": 0, "value": _CLONE_NEWUSER, "valueTwo": _CLONE_NEWUSER, "op": "SCMP_CMP_MASKED_EQ"}
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [
            deny(_DENIED),
            deny(["clone"], new_user),
            # Its flags are behind a pointer that a filter cannot read; "no such call" makes libraries use clone.
            deny(["clone3"], error=_ENOSYS),
            *(
                deny(["socket", "socketpair"], {"index": 0, "value": family, "op": "SCMP_CMP_EQ"})
                for family in (_AF_ALG, _AF_VSOCK)
            ),
        ],
    }
