"""Qwen Code, headless, on Node, over Chat Completions: one prompt, one JSON list of messages at the end."""

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

NAME = "qwen_code"
SETTINGS = "its environment and ~/.qwen/settings.json"

_PACKAGE = "@qwen-code/qwen-code"
_INSIDE = "/opt/qwen-code"
IMAGE_PATHS: tuple[str, ...] = (_INSIDE, NODE)


def binary(root: Path) -> Path:
    """The bundled script."""
    node_folder(root)
    return installed(root, _PACKAGE, "cli.js")


def version(root: Path) -> str:
    """As in its package.json."""
    return package_version(root, _PACKAGE)


def binds(root: Path) -> dict[str, Path]:
    """Its install folder, and Node's."""
    return {_INSIDE: binary(root).parent, NODE: node_folder(root)}


def prepare(home: Path, base_url: str, key: str, model: str) -> None:
    """Choose how to log in, and turn off all that would talk to others."""
    settings = {
        "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": False}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
        # Through its pseudo-terminal a command's output is lost in a sandbox.
        "tools": {"shell": {"enableInteractiveShell": False}},
    }
    write_settings(home / ".qwen" / "settings.json", settings)


def command(instruction: str, base_url: str, key: str, model: str) -> tuple[str, ...]:
    """One prompt; every tool call allowed."""
    flags = ("--yolo", "--output-format", "stream-json")
    return (f"{NODE}/bin/node", f"{_INSIDE}/cli.js", *flags, f"--prompt={instruction}")


def env(base_url: str, key: str, model: str) -> dict[str, str]:
    """Where the model is."""
    return {"OPENAI_BASE_URL": f"{base_url}/v1", "OPENAI_API_KEY": key, "OPENAI_MODEL": model}


def judge(outcome: Outcome) -> tuple[Exit, str]:
    """By its last `result` message."""
    last = last_event(outcome, "result")
    if last is None:
        return no_end_signal(outcome)
    if last.get("is_error") or outcome.exit_code != 0:
        return "failed", f"{last.get('subtype')}: {last.get('error') or last.get('result')}"[:500]
    return "completed", str(last.get("subtype"))
