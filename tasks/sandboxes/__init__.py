"""Sandboxes: one file a backend, found here by name. All of them run one command and end all of it.

    outcome = await choose("auto").run(Spec(...))

Inside, every backend looks the same: a read-only root with the host's own programs, or the task image's in a cluster,
a fresh /tmp, the rollout's folders at /workspace and /home/agent, user 1000 without capabilities, and no network: the
only way out is 127.0.0.1:8080, which is carried to `Spec.proxy`; for a task with tools beside the sandbox also
127.0.0.1:8081, to `Spec.tools`.

A command that ends badly is an `Outcome`; a sandbox that cannot be started is an `InfrastructureError`.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from importlib import import_module
from pathlib import Path
from typing import Any
from typing import Literal
from typing import Protocol
from typing import cast

from proxy_addons.errors import ConfigError
from proxy_addons.identity import Rollout

LOCAL = ("runc", "bubblewrap")
NAMES = (*LOCAL, "kubernetes")

WORKSPACE = "/workspace"
HOME = "/home/agent"
PROXY_URL = "http://127.0.0.1:8080"
PYTHON = "/usr/bin/python3"

Reason = Literal["exited", "timeout", "no_call", "oom", "killed", "start_failed", "lost"]


@dataclass(frozen=True)
class Spec:
    """One command in one sandbox.

    `binds_ro` and `binds_rw` map a path inside to a file or folder of the host. `proxy` and `tools` None: no way out
    at all. `first_call_s`: end the command if it has not connected to the proxy by then. `log_dir` gets `stdout` and
    `stderr`. `cpus` may be a fraction. Only a cluster looks at the last three: `image` is the task's container image,
    `payload` the harness whose own image holds `binds_ro`, `rollout` who this is.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    workspace: Path
    home: Path
    log_dir: Path
    proxy: tuple[str, int] | None = None
    tools: tuple[str, int] | None = None
    binds_ro: Mapping[str, Path] = field(default_factory=dict)
    binds_rw: Mapping[str, Path] = field(default_factory=dict)
    memory_mb: int = 2048
    cpus: float = 1.0
    pids: int = 256
    wall_s: float = 600.0
    first_call_s: float | None = None
    image: str | None = None
    payload: str | None = None
    rollout: Rollout | None = None

    def ways(self) -> dict[str, tuple[str, int]]:
        """The ways out of the sandbox: name → address on the host."""
        return {way: address for way, address in (("proxy", self.proxy), ("tools", self.tools)) if address}


@dataclass(frozen=True)
class Outcome:
    """How the command ended; nothing of it runs any more.

    * `exited`: by itself, with `exit_code`.
    * `timeout`: `wall_s` passed. `no_call`: `first_call_s` passed without a connection to the proxy.
    * `oom`: the kernel killed it at the memory limit. `killed`: by a signal from elsewhere.
    * `start_failed`: the sandbox was there, the program in it could not be executed.
    * `lost`: the sandbox was taken away while the command ran (evicted, preempted, its node gone).

    `cpu_s` None: the backend could not measure it.
    """

    exit_code: int | None
    reason: Reason
    detail: str
    wall_s: float
    cpu_s: float | None
    stdout_path: Path
    stderr_path: Path


class Sandbox(Protocol):
    """What a backend offers."""

    name: str

    async def run(self, spec: Spec) -> Outcome:
        """Run the command to its end. When cancelled it kills everything first. Raises InfrastructureError."""

    def not_enforced(self) -> list[str]:
        """The limits that this backend cannot hold on this machine, in words."""

    def reap(self, prefix: str) -> list[str]:
        """Kill what a dead controller left behind under names that start with `prefix`; returns the names."""


class _Backend(Protocol):
    def missing(self) -> str | None: ...

    def build(self, settings: Any = None) -> Sandbox: ...


def choose(name: str = "auto", settings: Any = None) -> Sandbox:
    """The backend `name`; "auto" takes runc as root and bubblewrap otherwise. Raises ConfigError with the remedy.

    `settings` are for `kubernetes` (`tasks.kube.settings.Settings`), which must be entered (`async with`) before use.
    """
    if name != "kubernetes" and not shutil.which(PYTHON):
        raise ConfigError(f"sandbox: {PYTHON} is missing and runs the sandbox's first process: apt install python3")
    if name == "auto":
        name = "runc" if os.geteuid() == 0 and _backend("runc").missing() is None else "bubblewrap"
    if name not in NAMES:
        raise ConfigError(f"sandbox {name!r}: use one of auto, {', '.join(NAMES)}")
    backend = _backend(name)
    if trouble := backend.missing():
        raise ConfigError(f"sandbox {name!r}: {trouble}")
    return backend.build(settings)


def _backend(name: str) -> _Backend:
    return cast(_Backend, import_module(f"{__name__}.{name}"))
