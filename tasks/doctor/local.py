"""The checks of this machine, for profile `local`."""

import contextlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from proxy_addons.errors import ConfigError
from tasks import harnesses
from tasks.doctor import Check
from tasks.doctor.versions import PYTHON_PACKAGES
from tasks.doctor.versions import judge
from tasks.doctor.versions import version_command
from tasks.doctor.versions import wanted
from tasks.proxy import proxy_python
from tasks.sandboxes import choose

PREFECT = ("127.0.0.1", 4200)
FREE_GB = 5
"""What a run of the default size and its checkpoints need."""
DEFAULT = ("claude_code", "codex")
"""The harnesses that a run takes if it names none; another's absence is no failure."""
_ASK_S = 60


def check_local(root: Path) -> Iterator[Check]:
    """All checks, in the order in which one would mend what they find."""
    yield _python()
    yield _proxy(root)
    yield _node()
    yield _sandbox()
    yield _disk(root)
    yield _port(PREFECT)
    for name in harnesses.NAMES:
        yield _harness(root, name)


def _python() -> Check:
    version = sys.version.split()[0]
    ok = sys.version_info[:2] in ((3, 11), (3, 12))
    return Check("python", ok, version if ok else f"{version}: install Python 3.11 or 3.12, then `make setup`")


def _proxy(root: Path) -> Check:
    python = proxy_python(root)
    code = "import sys, mitmproxy.version as v; print(v.VERSION, 'on Python', sys.version.split()[0])"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=_ASK_S)
    if done.returncode:
        return Check("mitmproxy", False, f"{python} cannot import it: `make setup`")
    return Check("mitmproxy", True, done.stdout.strip())


def _node() -> Check:
    if not shutil.which("npm"):
        return Check("npm", False, "not on PATH: apt install nodejs npm")
    done = subprocess.run(["npm", "--version"], capture_output=True, text=True, timeout=_ASK_S)
    return Check("npm", done.returncode == 0, done.stdout.strip() or done.stderr.strip()[:200])


def _sandbox() -> Check:
    try:
        sandbox = choose("auto")
    except ConfigError as error:
        return Check("sandbox", False, str(error))
    loose = ", ".join(sandbox.not_enforced())
    return Check("sandbox", True, f"{sandbox.name}; it cannot limit: {loose}" if loose else sandbox.name)


def _disk(root: Path) -> Check:
    free = shutil.disk_usage(root).free / 1e9
    words = f"{free:.0f} GB free in {root}"
    return Check("disk", free >= FREE_GB, words if free >= FREE_GB else f"{words}, {FREE_GB} are needed")


def _port(address: tuple[str, int]) -> Check:
    where = f"{address[0]}:{address[1]}"
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        return Check("port of Prefect", True, f"{where} is free")
    with contextlib.suppress(httpx.HTTPError):
        if httpx.get(f"http://{where}/api/health", timeout=5).text == "true":
            return Check("port of Prefect", True, f"a Prefect server answers at {where}; it will be used")
    return Check("port of Prefect", False, f"{where} is taken by another program: end it, or set PREFECT_API_URL")


def _harness(root: Path, name: str) -> Check:
    installed, harness = root / harnesses.INSTALL, harnesses.load(name)
    version = wanted(root).get(name)
    try:
        binary = harness.binary(installed)
        node = [str(harnesses.node_folder(installed) / "bin" / "node")] if binary.suffix in (".js", ".mjs") else []
    except ConfigError as error:
        return Check(name, False if name in DEFAULT else None, str(error))
    # Those in Python are an interpreter, whose own version nobody wants to know.
    question = version_command(name)[1:] if name in PYTHON_PACKAGES else ["--version"]
    try:
        done = subprocess.run([*node, str(binary), *question], capture_output=True, text=True, timeout=_ASK_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(name, False, f"it does not start: {error}")
    ok, words = judge(done.stdout or done.stderr, version)
    return Check(name, ok and done.returncode == 0, words)
