"""Claude Code, headless, with its smallest request: `--bare` and the Bash tool alone."""

import json
from collections.abc import Sequence
from pathlib import Path

from tasks.harnesses import GO_ON
from tasks.harnesses import SYSTEM_PROMPT
from tasks.harnesses import Exit
from tasks.harnesses import cpu
from tasks.harnesses import installed
from tasks.harnesses import json_lines
from tasks.harnesses import last_event
from tasks.harnesses import no_end_signal
from tasks.harnesses import package_version
from tasks.harnesses import write_settings
from tasks.mcp import McpServer
from tasks.sandboxes import WORKSPACE
from tasks.sandboxes import Outcome

NAME = "claude_code"
SETTINGS = "its environment and ~/.claude.json"
SESSIONS = ".claude/projects/*/*.jsonl"
MAX_TURNS = 50

_INSIDE = "/opt/claude-code"
IMAGE_PATHS: tuple[str, ...] = (_INSIDE,)
# How it words that the policy's output limit, its context or the rollout's calls (the proxy's 429) are used up.
_SPENT = ("output token maximum", "Prompt is too long", "rejected (429)")


def binary(root: Path) -> Path:
    """The native program; npm's own wrapper only links to it."""
    return installed(root, _package(), "claude")


def version(root: Path) -> str:
    """As in its package.json."""
    return package_version(root, _package())


def binds(root: Path) -> dict[str, Path]:
    """Its install folder."""
    return {_INSIDE: binary(root).parent}


def prepare(home: Path, base_url: str, key: str, model: str) -> None:
    """Answer the questions that it would ask a person at a first start (case O78)."""
    trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
    settings = {
        "hasCompletedOnboarding": True,
        "bypassPermissionsModeAccepted": True,
        "customApiKeyResponses": {"approved": [key[-20:]], "rejected": []},
        "projects": {WORKSPACE: trusted},
    }
    write_settings(home / ".claude.json", settings)


def command(instruction: str, base_url: str, key: str, model: str) -> tuple[str, ...]:
    """One prompt, one JSON object at the end."""
    return (
        f"{_INSIDE}/claude",
        *("--print", "--bare"),
        *("--tools", "Bash"),
        # Its own default names the day and the folder: the same task would be another prompt tomorrow.
        *("--system-prompt", SYSTEM_PROMPT),
        *("--model", model),
        *("--max-turns", str(MAX_TURNS)),
        *("--output-format", "json"),
        "--dangerously-skip-permissions",
        "--",
        instruction,
    )


def with_mcp(argv: tuple[str, ...], servers: Sequence[McpServer]) -> tuple[str, ...]:
    """These servers and no others; their tools come besides Bash, as `mcp__SERVER__TOOL`."""
    known = {each.name: {"command": each.command, "args": each.args} for each in servers}
    flags = list(argv[: argv.index("--")])
    flags[flags.index("--output-format") + 1] = "stream-json"  # which says what became of each server
    flags += ["--verbose", "--mcp-config", json.dumps({"mcpServers": known}), "--strict-mcp-config"]
    return (*flags, *argv[argv.index("--") :])


def unstarted(outcome: Outcome) -> tuple[str, ...]:
    """By its first event, which is out before its first call: it waits half a minute for a server, then goes on."""
    first = next((line for line in json_lines(outcome) if line.get("subtype") == "init"), {})
    return tuple(each["name"] for each in first.get("mcp_servers", ()) if each["status"] != "connected")


def keeping(argv: tuple[str, ...]) -> tuple[str, ...]:
    """It always writes its session down."""
    return argv


def resume(argv: tuple[str, ...], calls: int) -> tuple[str, ...]:
    """The turns that are left, and a prompt: without one it only goes on with what it deferred itself."""
    flags = list(argv[: argv.index("--")])
    flags[flags.index("--max-turns") + 1] = str(max(MAX_TURNS - calls, 1))
    return (*flags, "--continue", "--", GO_ON)


def env(base_url: str, key: str, model: str) -> dict[str, str]:
    """Where the model is, and nothing else to talk to."""
    return {
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_API_KEY": key,
        "IS_SANDBOX": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_THINKING": "1",
        "CLAUDE_CODE_MAX_RETRIES": "4",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
    }


def judge(outcome: Outcome) -> tuple[Exit, str]:
    """By `is_error` and `terminal_reason`: its `subtype` says "success" even when the model server failed."""
    last = last_event(outcome, "result")
    if last is None:
        return no_end_signal(outcome)
    reason = str(last.get("terminal_reason") or last.get("subtype") or "")
    if reason == "max_turns":
        return "budget", f"used its {MAX_TURNS} turns"
    if last.get("is_error") or outcome.exit_code != 0:
        said = str(last.get("result") or last.get("errors") or "no message")
        exit_: Exit = "budget" if any(mark in said for mark in _SPENT) else "failed"
        return exit_, f"{reason}: {said}"[:500]
    return "completed", reason


def _package() -> str:
    return f"@anthropic-ai/claude-code-linux-{cpu()}"
