"""Which version of a harness there should be, and how a harness is asked for its own."""

import json
from pathlib import Path

from tasks.harnesses import load

PACKAGES = {
    "claude_code": "@anthropic-ai/claude-code",
    "codex": "@openai/codex",
    "gemini_cli": "@google/gemini-cli",
    "openclaw": "openclaw",
    "opencode": "opencode-ai",
    "qwen_code": "@qwen-code/qwen-code",
}
PYTHON_PACKAGES = {"browser": "playwright", "mini_swe_agent": "mini-swe-agent", "openhands": "openhands-sdk"}
FOLDER = Path("deploy/harnesses/all")
FILE = FOLDER / "package.json"


def wanted(root: Path) -> dict[str, str]:
    """Harness → the version that deploy/harnesses names."""
    pinned = json.loads((root / FILE).read_text())["dependencies"]
    for file in (root / FOLDER).glob("*.txt"):
        pinned |= dict(line.split("==") for line in file.read_text().splitlines() if "==" in line)
    packages = PACKAGES | PYTHON_PACKAGES
    return {name: pinned[package] for name, package in packages.items() if package in pinned}


def version_command(name: str) -> list[str]:
    """How the harness says its version, with its path inside a sandbox. Those in Python are asked for their package."""
    program, *rest = load(name).command("", "", "", "")
    if name in PYTHON_PACKAGES:
        return [program, "-c", f"from importlib.metadata import version; print(version({PYTHON_PACKAGES[name]!r}))"]
    return [program, *rest[: 1 if Path(program).name == "node" else 0], "--version"]


def judge(said: str, version: str | None) -> tuple[bool, str]:
    """Whether `said`, what a harness answered, names `version`; and the words for the line."""
    first = (said.strip().splitlines() or ["nothing"])[0][:200]
    if version is None:
        return True, f"{first}; deploy/harnesses pins no version of it"
    if version in first.replace("(", " ").split():
        return True, version
    return False, f"it says {first!r}, deploy/harnesses pins {version}: install or build it again"
