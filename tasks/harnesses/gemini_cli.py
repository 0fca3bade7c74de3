"""Gemini CLI, headless, on Node: one prompt, events as JSON lines."""

from pathlib import Path

from tasks.harnesses import NODE
from tasks.harnesses import Exit
from tasks.harnesses import installed
from tasks.harnesses import last_event
from tasks.harnesses import no_end_signal
from tasks.harnesses import node_folder
from tasks.harnesses import package_version
from tasks.harnesses import write_settings
from tasks.sandboxes import Outcome

NAME = "gemini_cli"
SETTINGS = "its environment and ~/.gemini/settings.json"

_PACKAGE = "@google/gemini-cli"
_INSIDE = "/opt/gemini-cli"
IMAGE_PATHS: tuple[str, ...] = (_INSIDE, NODE)


def binary(root: Path) -> Path:
    """The bundled script."""
    node_folder(root)
    return installed(root, _PACKAGE, "bundle", "gemini.js")


def version(root: Path) -> str:
    """As in its package.json."""
    return package_version(root, _PACKAGE)


def binds(root: Path) -> dict[str, Path]:
    """Its install folder, and Node's."""
    return {_INSIDE: binary(root).parent.parent, NODE: node_folder(root)}


def prepare(home: Path, base_url: str, key: str, model: str) -> None:
    """Choose how to log in, and turn off all that would talk to others."""
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    }
    write_settings(home / ".gemini" / "settings.json", settings)


def command(instruction: str, base_url: str, key: str, model: str) -> tuple[str, ...]:
    """One prompt; every tool call allowed."""
    flags = ("--yolo", "--output-format", "stream-json", "--model", model)
    return (f"{NODE}/bin/node", f"{_INSIDE}/bundle/gemini.js", *flags, f"--prompt={instruction}")


def env(base_url: str, key: str, model: str) -> dict[str, str]:
    """Where the model is, and nothing else to talk to."""
    return {
        "GOOGLE_GEMINI_BASE_URL": base_url,
        "GEMINI_API_KEY": key,
        "GEMINI_TELEMETRY_ENABLED": "false",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "GEMINI_CLI_NO_RELAUNCH": "true",
    }


def judge(outcome: Outcome) -> tuple[Exit, str]:
    """By its last `result` event: its exit code is 0 after SIGTERM too."""
    last = last_event(outcome, "result")
    if last is None:
        return no_end_signal(outcome)
    if last.get("status") == "success" and outcome.exit_code == 0:
        return "completed", "success"
    return "failed", f"{last.get('status')}: {last.get('error')}"[:500]
