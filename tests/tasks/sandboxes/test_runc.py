"""What only runc holds: memory, CPU, and doors that namespaces leave open."""

from pathlib import Path

import pytest

from tasks.sandboxes import Sandbox
from tests.tasks.boxes import here
from tests.tasks.boxes import shell


@pytest.fixture
def runc() -> Sandbox:
    return here("runc")


async def test_cpu_limit(runc: Sandbox, tmp_path: Path) -> None:
    outcome, _ = await shell(runc, tmp_path, "timeout 2 sh -c 'while :; do :; done'", cpus=0.25)
    assert outcome.cpu_s is not None and outcome.cpu_s < 1.0


async def test_denied_system_calls(runc: Sandbox, tmp_path: Path) -> None:
    line = "python3 -c 'import socket; socket.socket(40, 1)' 2>&1 | tail -1; mount -t tmpfs x /tmp 2>&1"
    _, out = await shell(runc, tmp_path, line)
    assert out.startswith("PermissionError: [Errno 1]") and "must be superuser" in out


def test_says_what_it_cannot_hold(runc: Sandbox) -> None:
    assert runc.not_enforced() == ["total disk of the workspace"]
