"""Run a real harness in a real sandbox against the stub."""

from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from tasks import harnesses
from tasks.sandboxes import PROXY_URL
from tasks.sandboxes import Outcome
from tasks.sandboxes import Sandbox
from tasks.sandboxes import Spec
from tests.tasks.stub import Stub

SHELL = tuple(name for name in harnesses.NAMES if name != "browser")
"""The harnesses with a shell tool, in which a script can run commands."""

ROOT = Path(__file__).parents[3] / harnesses.INSTALL
URL = f"{PROXY_URL}/r/run-e000-task-s00-t0"
KEY = "of-test-key-0123456789012345678901234567890123456789"


def installed(name: str) -> harnesses.Harness:
    """The harness `name`, or skip the test where it is not installed."""
    harness = harnesses.load(name)
    try:
        harness.binary(ROOT)
    except ConfigError as error:
        pytest.skip(str(error))
    return harness


async def drive(
    sandbox: Sandbox, harness: harnesses.Harness, stub: Stub, folder: Path
) -> tuple[Outcome, harnesses.End]:
    """One run; its workspace is `folder`/workspace."""
    for name in ("workspace", "home"):
        (folder / name).mkdir(exist_ok=True)
    harness.prepare(folder / "home", URL, KEY, "policy-v1")
    before = len(stub.requests)
    spec = Spec(
        name="test-harness",
        argv=harness.command("Write made.txt.", URL, KEY, "policy-v1"),
        env=harness.env(URL, KEY, "policy-v1"),
        workspace=folder / "workspace",
        home=folder / "home",
        log_dir=folder / "log",
        proxy=("127.0.0.1", stub.port),
        binds_ro=harness.binds(ROOT),
        wall_s=80,
        first_call_s=75,
    )
    outcome = await sandbox.run(spec)
    return outcome, harnesses.end(harness, outcome, len(stub.requests) - before, URL)
