"""Judging by a harness's own last words, and the words for what is missing."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxy_addons.errors import ConfigError
from tasks import harnesses
from tasks.harnesses import browser
from tasks.harnesses import claude_code
from tasks.harnesses import codex
from tasks.harnesses import mini_swe_agent
from tasks.harnesses import openhands
from tasks.sandboxes import Outcome
from tasks.sandboxes import Reason

ALL_IN_THE_ENVIRONMENT = ("mini_swe_agent", "openhands")


def outcome(folder: Path, out: str = "", err: str = "", code: int | None = 0, reason: Reason = "exited") -> Outcome:
    (folder / "stdout").write_text(out)
    (folder / "stderr").write_text(err)
    return Outcome(code, reason, "", 1.0, 1.0, folder / "stdout", folder / "stderr")


@pytest.mark.parametrize(
    ("result", "code", "exit_"),
    [
        ({"is_error": False, "terminal_reason": "completed"}, 0, "completed"),
        (
            {"is_error": True, "subtype": "success", "terminal_reason": "api_error", "result": "API Error: 500"},
            1,
            "failed",
        ),
        ({"is_error": True, "terminal_reason": "max_turns"}, 1, "budget"),
        ({"is_error": False, "terminal_reason": "completed"}, 1, "failed"),
    ],
)
def test_claude_code(result: dict[str, Any], code: int, exit_: str, tmp_path: Path) -> None:
    out = "not json\n" + json.dumps({"type": "result", **result}) + "\n"
    assert claude_code.judge(outcome(tmp_path, out, code=code))[0] == exit_


@pytest.mark.parametrize(
    ("events", "code", "exit_"),
    [
        ([{"type": "turn.started"}, {"type": "turn.completed"}], 0, "completed"),
        ([{"type": "turn.failed", "error": {"message": "unexpected status 500"}}], 1, "failed"),
        ([{"type": "turn.failed"}, {"type": "turn.completed"}], 0, "completed"),
        ([{"type": "turn.completed"}], 1, "failed"),
    ],
)
def test_codex(events: list[dict[str, Any]], code: int, exit_: str, tmp_path: Path) -> None:
    out = "".join(f"{json.dumps(event)}\n" for event in events)
    assert codex.judge(outcome(tmp_path, out, code=code))[0] == exit_


@pytest.mark.parametrize(
    ("last", "code", "exit_"),
    [
        ("", 0, "completed"),
        ("RepeatedFormatError", 0, "failed"),
        ("LimitsExceeded", 0, "budget"),
        ("litellm.ContextWindowExceededError: prompt is too long", 1, "budget"),
        ("litellm.InternalServerError: away", 1, "failed"),
    ],
)
def test_mini_swe_agent(last: str, code: int, exit_: str, tmp_path: Path) -> None:
    out = f"Tool:\nExit:\nof a file\n\nExit:\n{last}\nSaved trajectory to '/x'\n"
    assert mini_swe_agent.judge(outcome(tmp_path, out, code=code))[0] == exit_


@pytest.mark.parametrize(
    ("status", "error", "code", "exit_"),
    [
        ("finished", "", 0, "completed"),
        ("stuck", "", 0, "failed"),
        ("error", "ConversationRunError: away", 1, "failed"),
        ("error", "ConversationRunError: x; after LLMContextWindowExceedError: prompt is too long", 1, "budget"),
    ],
)
def test_openhands(status: str, error: str, code: int, exit_: str, tmp_path: Path) -> None:
    out = json.dumps({"type": "result", "status": status, "error": error})
    assert openhands.judge(outcome(tmp_path, out, code=code))[0] == exit_


@pytest.mark.parametrize(
    ("status", "reason", "code", "exit_"),
    [
        ("done", "", 0, "completed"),
        ("gave_up", "3 replies in a row were no action", 1, "failed"),
        ("budget", "context_length_exceeded", 1, "budget"),
        ("broken", "site/server.py ended by itself", 255, "failed"),
    ],
)
def test_browser(status: str, reason: str, code: int, exit_: str, tmp_path: Path) -> None:
    out = json.dumps({"type": "result", "status": status, "reason": reason, "browser": "Chromium 1"})
    told = browser.judge(outcome(tmp_path, out, code=code))
    assert told == (exit_, reason or "done, in Chromium 1")


def test_browser_without_chromium_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "browser/bin").mkdir(parents=True)
    (tmp_path / "browser/bin/python").touch()
    metadata = tmp_path / "browser/lib/python3.12/site-packages/playwright-1.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Name: playwright\nVersion: 1\n")
    monkeypatch.setattr(browser, "CHROMIUM", tmp_path / "chromium/chromium")
    with pytest.raises(
        ConfigError, match=r"^harness: Chromium is not installed in .*; run `make harnesses-all` as root"
    ):
        browser.binary(tmp_path)


def test_the_interpreter_that_an_environment_links_to_is_bound_too(tmp_path: Path) -> None:
    base = tmp_path / "python"
    (base / "bin").mkdir(parents=True)
    (base / "bin/python3.12").touch()
    (tmp_path / "own/bin").mkdir(parents=True)
    (tmp_path / "own/bin/python").symlink_to(base / "bin/python3.12")
    assert harnesses.python_binds(tmp_path / "own", "/opt/own") == {"/opt/own": tmp_path / "own", str(base): base}
    (tmp_path / "own/bin/python").unlink()
    (tmp_path / "own/bin/python").symlink_to("/usr/bin/python3")
    assert harnesses.python_binds(tmp_path / "own", "/opt/own") == {"/opt/own": tmp_path / "own"}


@pytest.mark.parametrize("name", harnesses.NAMES)
def test_exit_0_without_a_last_word_is_no_success(name: str, tmp_path: Path) -> None:
    exit_, reason = harnesses.load(name).judge(outcome(tmp_path, "Trust this folder? [y/N]"))
    assert (exit_, reason) == ("failed", "exit 0 without an end signal; it said: Trust this folder? [y/N]")


@pytest.mark.parametrize(
    ("reason", "exit_", "error", "scored"),
    [
        ("timeout", "timeout", "PolicyFailure", True),
        ("no_call", "no_call", "HarnessError", False),
        ("oom", "lost", "InfrastructureError", False),
        ("killed", "lost", "InfrastructureError", False),
        ("start_failed", "lost", "InfrastructureError", False),
    ],
)
def test_end_by_the_sandbox(reason: Reason, exit_: str, error: str, scored: bool, tmp_path: Path) -> None:
    end = harnesses.end(harnesses.load("codex"), outcome(tmp_path, code=None, reason=reason), 1, "http://x")
    assert (end.exit, end.error_class, end.scored) == (exit_, error, scored)


def test_unknown_harness() -> None:
    with pytest.raises(ConfigError, match=r"harness 'gemini': use one of browser, claude_code, codex"):
        harnesses.load("gemini")


@pytest.mark.parametrize("name", harnesses.NAMES)
def test_not_installed(name: str, tmp_path: Path) -> None:
    harness = harnesses.load(name)
    for function in (harness.binary, harness.version, harness.binds):
        with pytest.raises(ConfigError, match=r"run `make harnesses(-all)?`"):
            function(tmp_path)


@pytest.mark.parametrize("name", harnesses.NAMES)
def test_the_key_is_only_in_the_environment(name: str, tmp_path: Path) -> None:
    harness, key = harnesses.load(name), "of-test-key-that-nobody-else-may-see-0123456789"
    harness.prepare(tmp_path, "http://x/r/y", key, "policy-v1")
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert key not in written and (written or name in ALL_IN_THE_ENVIRONMENT)
    assert key not in " ".join(harness.command("do it", "http://x/r/y", key, "policy-v1"))
    assert key in harness.env("http://x/r/y", key, "policy-v1").values()


@pytest.mark.parametrize("name", harnesses.NAMES)
def test_an_instruction_that_looks_like_a_flag(name: str) -> None:
    last = harnesses.load(name).command("--help", "http://x", "k", "m")[-2:]
    assert last == ("--", "--help") or last[-1] in ("--message=--help", "--prompt=--help", "--task=--help")
