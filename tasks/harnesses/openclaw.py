"""OpenClaw's embedded agent, headless, on Node, over Responses: the one of its APIs that keeps its history as a prefix.

It needs the other packages of its install beside it, so the whole node_modules folder is bound.
"""

import json
from pathlib import Path

from tasks.harnesses import NODE
from tasks.harnesses import Exit
from tasks.harnesses import installed
from tasks.harnesses import no_end_signal
from tasks.harnesses import node_folder
from tasks.harnesses import package_version
from tasks.harnesses import write_settings
from tasks.sandboxes import WORKSPACE
from tasks.sandboxes import Outcome

NAME = "openclaw"
SETTINGS = "~/.openclaw/openclaw.json"
CONTEXT_TOKENS, OUTPUT_TOKENS = 128_000, 8_192
"""What it believes of the model; it compacts its history near the first."""

_PACKAGE = "openclaw"
_INSIDE = "/opt/node_modules"
IMAGE_PATHS: tuple[str, ...] = (_INSIDE, NODE)
_KEY = "POLICY_API_KEY"


def binary(root: Path) -> Path:
    """The script that starts it."""
    node_folder(root)
    return installed(root, _PACKAGE, "openclaw.mjs")


def version(root: Path) -> str:
    """As in its package.json."""
    return package_version(root, _PACKAGE)


def binds(root: Path) -> dict[str, Path]:
    """All that was installed, and Node."""
    return {_INSIDE: binary(root).parents[1], NODE: node_folder(root)}


def prepare(home: Path, base_url: str, key: str, model: str) -> None:
    """Its one provider is the policy. The key stays in the environment."""
    known = {
        "id": model,
        "name": model,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": CONTEXT_TOKENS,
        "maxTokens": OUTPUT_TOKENS,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    provider = {"baseUrl": f"{base_url}/v1", "apiKey": f"${{{_KEY}}}", "api": "openai-responses", "models": [known]}
    settings = {
        "models": {"mode": "replace", "providers": {"policy": provider}},
        "agents": {
            "defaults": {"workspace": WORKSPACE, "model": {"primary": f"policy/{model}"}, "skipBootstrap": True}
        },
        "update": {"checkOnStart": False},
    }
    write_settings(home / ".openclaw" / "openclaw.json", settings)


def command(instruction: str, base_url: str, key: str, model: str) -> tuple[str, ...]:
    """One message to its main agent, in this process, one JSON object at the end."""
    flags = ("--local", "--agent", "main", "--json", f"--message={instruction}")
    return (f"{NODE}/bin/node", f"{_INSIDE}/openclaw/openclaw.mjs", "agent", *flags)


def env(base_url: str, key: str, model: str) -> dict[str, str]:
    """The key, nobody to look for on the network, and no second process."""
    return {_KEY: key, "OPENCLAW_DISABLE_BONJOUR": "1", "OPENCLAW_NO_RESPAWN": "1"}


def judge(outcome: Outcome) -> tuple[Exit, str]:
    """By the JSON object that it prints last."""
    text = outcome.stdout_path.read_text(errors="replace")
    try:
        last = json.loads(text[text.index("{") :])
    except ValueError:
        return no_end_signal(outcome)
    meta = last.get("meta") or {}
    reason = str(meta.get("stopReason") or meta.get("error") or "ended")
    if outcome.exit_code != 0 or meta.get("error"):
        return "failed", reason[:500]
    return "completed", reason
