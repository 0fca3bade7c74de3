"""Codex, headless, with its smallest request: the shell tool and one instruction."""

import json
from collections.abc import Sequence
from pathlib import Path
from string import Template

from tasks.harnesses import GO_ON
from tasks.harnesses import SYSTEM_PROMPT
from tasks.harnesses import Exit
from tasks.harnesses import cpu
from tasks.harnesses import installed
from tasks.harnesses import last_event
from tasks.harnesses import no_end_signal
from tasks.harnesses import package_version
from tasks.mcp import McpServer
from tasks.sandboxes import HOME
from tasks.sandboxes import Outcome

NAME = "codex"
SETTINGS = "~/.codex/config.toml"
SESSIONS = ".codex/sessions/*/*/*/*.jsonl"
CONTEXT_TOKENS = 16384
"""Where it starts to compact its history."""

_INSIDE = "/opt/codex"
IMAGE_PATHS: tuple[str, ...] = (_INSIDE,)
_CONFIG_HOME = f"{HOME}/.codex"
_KEY = "POLICY_API_KEY"
# How it words that the policy's output limit, its context or the rollout's calls (the proxy's 429) are used up.
_SPENT = ("max_output_tokens", "context window", "429 Too Many Requests")
# Everything that is off would add tools, prompts or network calls; left on, its smallest request is six times as large.
_CONFIG = Template("""\
model = $model
model_provider = "policy"
model_catalog_json = "$folder/models.json"
approval_policy = "never"
sandbox_mode = "danger-full-access"
web_search = "disabled"
check_for_update_on_startup = false
project_doc_max_bytes = 0
include_environment_context = false
include_permissions_instructions = false
include_apps_instructions = false
include_collaboration_mode_instructions = false

[analytics]
enabled = false

[otel]
metrics_exporter = "none"

[features]
plugins = false
apps = false
remote_plugin = false
goals = false
view_image = false
unified_exec_tty = false
shell_snapshot = false
unbounded_connection_retries = false

[agents]
enabled = false

[tools.experimental_request_user_input]
enabled = false

[skills]
include_instructions = false

[skills.bundled]
enabled = false

[model_providers.policy]
name = "policy"
base_url = $url
env_key = "$key_name"
wire_api = "responses"
request_max_retries = 2
stream_max_retries = 2
stream_idle_timeout_ms = 1800000
supports_websockets = false
""")


def binary(root: Path) -> Path:
    """The native program; npm's own wrapper is a Node script that starts it."""
    return _vendor(root) / "bin/codex"


def version(root: Path) -> str:
    """Without the platform that its package adds ("0.169.0-linux-x64")."""
    return package_version(root, _package()).split("-")[0]


def binds(root: Path) -> dict[str, Path]:
    """The folder with the program and its helpers."""
    return {_INSIDE: _vendor(root)}


def prepare(home: Path, base_url: str, key: str, model: str) -> None:
    """Write config.toml and the catalogue entry of our model. The key stays in the environment."""
    folder = home / ".codex"
    folder.mkdir(exist_ok=True)
    # A JSON string is also a TOML string.
    values = {"model": json.dumps(model), "url": json.dumps(f"{base_url}/v1"), "folder": _CONFIG_HOME}
    (folder / "config.toml").write_text(_CONFIG.substitute(values, key_name=_KEY))
    (folder / "models.json").write_text(json.dumps({"models": [_catalogue_entry(model)]}))


def command(instruction: str, base_url: str, key: str, model: str) -> tuple[str, ...]:
    """One prompt, events as JSON lines."""
    flags = ("--json", "--strict-config", "--skip-git-repo-check", "--ephemeral")
    return (f"{_INSIDE}/bin/codex", "exec", *flags, "--", instruction)


def with_mcp(argv: tuple[str, ...], servers: Sequence[McpServer]) -> tuple[str, ...]:
    """Their tools come besides the shell, as `mcp__SERVER__TOOL`, and three of Codex's own for resources."""
    words: list[str] = []
    for each in servers:
        # A JSON string or list of strings is also a TOML one.
        values = {"command": json.dumps(each.command), "args": json.dumps(each.args), "required": "true"}
        words += [word for key, value in values.items() for word in ("-c", f"mcp_servers.{each.name}.{key}={value}")]
    at = argv.index("--")
    return (*argv[:at], *words, *argv[at:])


def unstarted(outcome: Outcome) -> tuple[str, ...]:
    """None: the servers are `required`, so it ends before its first call where one does not start."""
    return ()


def keeping(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Not ephemeral, which costs it two fifths more CPU time in a short session."""
    return tuple(word for word in argv if word != "--ephemeral")


def resume(argv: tuple[str, ...], calls: int) -> tuple[str, ...]:
    """Its last session; Codex has no limit on turns of its own."""
    flags = argv[2 : argv.index("--")]
    return (*argv[:2], "resume", "--last", *flags, "--", GO_ON)


def env(base_url: str, key: str, model: str) -> dict[str, str]:
    """The key, and where its settings are."""
    return {_KEY: key, "CODEX_HOME": _CONFIG_HOME}


def judge(outcome: Outcome) -> tuple[Exit, str]:
    """By its last `turn.completed` or `turn.failed`."""
    last = last_event(outcome, "turn.completed", "turn.failed")
    if last is None:
        return no_end_signal(outcome)
    if last["type"] == "turn.failed" or outcome.exit_code != 0:
        said = str((last.get("error") or {}).get("message", "no message"))
        exit_: Exit = "budget" if any(mark in said for mark in _SPENT) else "failed"
        return exit_, f"{last['type']}: {said}"[:500]
    return "completed", "turn.completed"


def _catalogue_entry(model: str) -> dict[str, object]:
    return {
        "slug": model,
        "display_name": model,
        "supported_reasoning_levels": [],
        "shell_type": "unified_exec",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 1,
        "base_instructions": SYSTEM_PROMPT,
        "support_verbosity": False,
        "truncation_policy": {"mode": "tokens", "limit": 2000},
        "supports_parallel_tool_calls": True,
        "context_window": CONTEXT_TOKENS,
        "experimental_supported_tools": [],
        "input_modalities": ["text"],
        "supports_reasoning_summary_parameter": False,
    }


def _package() -> str:
    return f"@openai/codex-linux-{cpu()}"


def _vendor(root: Path) -> Path:
    machine = {"x64": "x86_64", "arm64": "aarch64"}[cpu()]
    return installed(root, _package(), "vendor", f"{machine}-unknown-linux-musl")
