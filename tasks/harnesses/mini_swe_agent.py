"""mini-swe-agent, headless, on its own Python, over Chat Completions: one prompt, one tool (bash).

A turn without a tool call is an error to it: it takes the turn back, says what is wrong, and gives up after three.
"""

from pathlib import Path

from tasks.harnesses import Exit
from tasks.harnesses import no_end_signal
from tasks.harnesses import python_binds
from tasks.harnesses import python_environment
from tasks.harnesses import python_version
from tasks.sandboxes import Outcome

NAME = "mini_swe_agent"
SETTINGS = "its environment and options"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The command by which the policy ends the task; its prompt asks for it."""

_PACKAGE = "mini-swe-agent"
_INSIDE = "/opt/mini-swe-agent"
IMAGE_PATHS: tuple[str, ...] = ()  # its interpreter is this machine's, which no task image has
_LIMITS = ("LimitsExceeded", "TimeExceeded")
# How it words that the policy's context or the rollout's calls (the proxy's 429) are used up.
_SPENT = ("ContextWindowExceeded", "RateLimitError")


def binary(root: Path) -> Path:
    """Its environment's interpreter."""
    return _environment(root) / "bin/python"


def version(root: Path) -> str:
    """As installed."""
    return python_version(_environment(root), _PACKAGE)


def binds(root: Path) -> dict[str, Path]:
    """Its environment and the interpreter."""
    return python_binds(_environment(root), _INSIDE)


def prepare(home: Path, base_url: str, key: str, model: str) -> None:
    """Nothing: all its settings are in the environment and on the command line."""


def command(instruction: str, base_url: str, key: str, model: str) -> tuple[str, ...]:
    """One prompt; no question before a command or at the end."""
    flags = ("--yolo", "--exit-immediately", "--cost-limit=0", f"--model=openai/{model}")
    return (f"{_INSIDE}/bin/python", "-m", "minisweagent.run.mini", *flags, f"--task={instruction}")


def env(base_url: str, key: str, model: str) -> dict[str, str]:
    """Where the model is, no first-time questions, and no price list to fetch."""
    return {
        "OPENAI_API_BASE": f"{base_url}/v1",
        "OPENAI_API_KEY": key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "3",
        "MSWEA_SILENT_STARTUP": "1",
    }


def judge(outcome: Outcome) -> tuple[Exit, str]:
    """By the last message that it prints, under "Exit:": its exit code is 0 after format errors and limits too."""
    _, found, last = f"\n{outcome.stdout_path.read_text(errors='replace')}".rpartition("\nExit:\n")
    if not found:
        return no_end_signal(outcome)
    said = last.partition("Saved trajectory to")[0].strip()
    if outcome.exit_code != 0:
        return ("budget" if any(mark in said for mark in _SPENT) else "failed"), said[:500]
    if said in _LIMITS:
        return "budget", said
    return ("failed", said) if said == "RepeatedFormatError" else ("completed", "submitted")


def _environment(root: Path) -> Path:
    return python_environment(root, _PACKAGE, _PACKAGE)
