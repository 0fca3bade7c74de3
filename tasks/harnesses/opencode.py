"""opencode, headless, over Chat Completions: one prompt, events as JSON lines."""

import json
from pathlib import Path

from tasks.harnesses import Exit
from tasks.harnesses import cpu
from tasks.harnesses import installed
from tasks.harnesses import last_event
from tasks.harnesses import no_end_signal
from tasks.harnesses import package_version
from tasks.harnesses import write_settings
from tasks.sandboxes import HOME
from tasks.sandboxes import Outcome

NAME = "opencode"
SETTINGS = "~/opencode.json"
CONTEXT_TOKENS, OUTPUT_TOKENS = 128_000, 8_192
"""What it believes of the model; it compacts its history near the first."""

_INSIDE = "/opt/opencode"
IMAGE_PATHS: tuple[str, ...] = (_INSIDE,)
_KEY = "POLICY_API_KEY"


def binary(root: Path) -> Path:
    """The native program; npm's own wrapper is a Node script that starts it."""
    return installed(root, _package(), "bin", "opencode")


def version(root: Path) -> str:
    """As in its package.json."""
    return package_version(root, _package())


def binds(root: Path) -> dict[str, Path]:
    """Its install folder."""
    return {_INSIDE: binary(root).parent.parent}


def prepare(home: Path, base_url: str, key: str, model: str) -> None:
    """Its one provider is the policy, for small tasks too. The key stays in the environment."""
    limit = {"context": CONTEXT_TOKENS, "output": OUTPUT_TOKENS}
    settings = {
        "provider": {
            "policy": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{base_url}/v1", "apiKey": f"{{env:{_KEY}}}"},
                "models": {model: {"name": model, "limit": limit}},
            }
        },
        "model": f"policy/{model}",
        "small_model": f"policy/{model}",
        "share": "disabled",
        "autoupdate": False,
        "permission": {"*": "allow"},
    }
    write_settings(home / "opencode.json", settings)


def command(instruction: str, base_url: str, key: str, model: str) -> tuple[str, ...]:
    """One prompt, with a title given, so that it asks the model for none."""
    flags = ("--format", "json", "--model", f"policy/{model}", "--title", "task")
    return (f"{_INSIDE}/bin/opencode", "run", *flags, "--", instruction)


def env(base_url: str, key: str, model: str) -> dict[str, str]:
    """The key, where its settings are, and nothing to fetch."""
    off = ("AUTOUPDATE", "MODELS_FETCH", "DEFAULT_PLUGINS", "LSP_DOWNLOAD")
    disabled = {f"OPENCODE_DISABLE_{name}": "1" for name in off}
    return {_KEY: key, "OPENCODE_CONFIG": f"{HOME}/opencode.json", **disabled}


def judge(outcome: Outcome) -> tuple[Exit, str]:
    """By its last `step_finish` or `error` event."""
    last = last_event(outcome, "step_finish", "error")
    if last is None:
        return no_end_signal(outcome)
    if last["type"] == "error" or outcome.exit_code != 0:
        return "failed", f"{last['type']}: {json.dumps(last.get('error'))}"[:500]
    reason = str((last.get("part") or {}).get("reason"))
    return ("budget" if reason == "length" else "completed"), reason


def _package() -> str:
    return f"opencode-linux-{cpu()}"
