"""Sandboxes for tests: the backends that this machine has, and a short way to run a shell line in one."""

import os
from pathlib import Path
from typing import Any

import pytest

from proxy_addons.errors import ConfigError
from tasks.sandboxes import LOCAL
from tasks.sandboxes import Outcome
from tasks.sandboxes import Sandbox
from tasks.sandboxes import Spec
from tasks.sandboxes import choose

NAME = f"test-box-{os.getpid()}"  # other tests run beside these


def here(name: str) -> Sandbox:
    """The backend `name`, or skip the test where the machine lacks it."""
    try:
        return choose(name)
    except ConfigError as error:
        pytest.skip(str(error))


def spec(folder: Path, line: str, **fields: Any) -> Spec:
    """A spec that runs `line` in bash, with its folders below `folder`."""
    for name in ("workspace", "home"):
        (folder / name).mkdir(exist_ok=True)
    given = {
        "name": NAME,
        "argv": ("bash", "-c", line),
        "env": {},
        "workspace": folder / "workspace",
        "home": folder / "home",
        "log_dir": folder / "log",
        "wall_s": 20.0,
        **fields,
    }
    return Spec(**given)


async def shell(sandbox: Sandbox, folder: Path, line: str, **fields: Any) -> tuple[Outcome, str]:
    """Run `line`; the outcome and its standard output."""
    outcome = await sandbox.run(spec(folder, line, **fields))
    return outcome, outcome.stdout_path.read_text()


BACKENDS = pytest.mark.parametrize("backend", LOCAL)
