"""O78: a harness that would wait for a person: the answers are seeded, and a silent one fails with its last lines."""

import json
import os
from pathlib import Path

import pytest

from tasks import harnesses
from tests.tasks.boxes import here
from tests.tasks.boxes import shell
from tests.tasks.harnesses.real import SHELL
from tests.tasks.harnesses.real import drive
from tests.tasks.harnesses.real import installed
from tests.tasks.stub import Stub
from tests.tasks.stub import serving


@pytest.mark.slow
@pytest.mark.timeout(90)
@pytest.mark.parametrize("name", SHELL)
async def test_o78_workspace_behind_a_link_and_whoever_calls(name: str, tmp_path: Path) -> None:
    """Also as root: the sandbox's user is never root, so no harness refuses."""
    (tmp_path / "real").mkdir()
    (tmp_path / "workspace").symlink_to(tmp_path / "real")
    async with serving(Stub(commands=("id -u > made.txt",))) as stub:
        outcome, end = await drive(here("auto"), installed(name), stub, tmp_path)
    assert end.exit == "completed", (os.geteuid(), end, outcome)
    assert (tmp_path / "real/made.txt").read_text() == "1000\n"


def test_o78_answers_are_seeded(tmp_path: Path) -> None:
    harnesses.load("claude_code").prepare(tmp_path, "http://x", "k" * 40, "policy-v1")
    settings = json.loads((tmp_path / ".claude.json").read_text())
    assert settings["hasCompletedOnboarding"] and settings["bypassPermissionsModeAccepted"]
    assert settings["projects"]["/workspace"]["hasTrustDialogAccepted"]
    harnesses.load("codex").prepare(tmp_path, "http://x", "k" * 40, "policy-v1")
    assert 'approval_policy = "never"' in (tmp_path / ".codex/config.toml").read_text()


async def test_o78_silent_harness_fails_with_its_last_lines(tmp_path: Path) -> None:
    line = "echo Welcome; echo 'Do you trust this folder? [y/N]'; sleep 60"
    fields = {"proxy": ("127.0.0.1", 1), "first_call_s": 1.0}
    outcome, _ = await shell(here("auto"), tmp_path, line, **fields)
    end = harnesses.end(harnesses.load("claude_code"), outcome, calls=0, base_url="http://127.0.0.1:8080/r/x")
    assert (end.exit, end.error_class) == ("no_call", "HarnessError")
    assert "no model call within 1 s" in end.reason and "Do you trust this folder? [y/N]" in end.reason
    assert outcome.wall_s < 10
