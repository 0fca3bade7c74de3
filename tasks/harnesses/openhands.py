"""OpenHands, headless, on its own Python, over Chat Completions: the SDK's default agent without a browser.

It is a library. `openhands_run.py`, beside this file, is the program around it: one prompt, one JSON object at the end.
"""

from pathlib import Path

from tasks.harnesses import Exit
from tasks.harnesses import last_event
from tasks.harnesses import no_end_signal
from tasks.harnesses import python_binds
from tasks.harnesses import python_environment
from tasks.harnesses import python_version
from tasks.sandboxes import Outcome

NAME = "openhands"
SETTINGS = "its environment and tasks/harnesses/openhands_run.py"

_PACKAGE = "openhands-tools"
_INSIDE = "/opt/openhands"
IMAGE_PATHS: tuple[str, ...] = ()  # its interpreter is this machine's, which no task image has
_SCRIPT = "/opt/openhands_run.py"
# How it words that the policy's context (for which it would condense its history, if there were any) or the rollout's
# calls (the proxy's 429) are used up.
_SPENT = ("ContextWindowExceed", "NoCondensationAvailable", "RateLimitError")


def binary(root: Path) -> Path:
    """Its environment's interpreter."""
    return _environment(root) / "bin/python"


def version(root: Path) -> str:
    """As installed."""
    return python_version(_environment(root), _PACKAGE)


def binds(root: Path) -> dict[str, Path]:
    """Its environment, the interpreter, and the program."""
    return python_binds(_environment(root), _INSIDE) | {_SCRIPT: Path(__file__).with_name("openhands_run.py")}


def prepare(home: Path, base_url: str, key: str, model: str) -> None:
    """Nothing: all its settings are in the environment."""


def command(instruction: str, base_url: str, key: str, model: str) -> tuple[str, ...]:
    """One prompt."""
    return (f"{_INSIDE}/bin/python", _SCRIPT, "--", instruction)


def env(base_url: str, key: str, model: str) -> dict[str, str]:
    """Where the model is, no price list to fetch, and nothing on the screen but the end."""
    return {
        "LLM_MODEL": f"openai/{model}",
        "LLM_BASE_URL": f"{base_url}/v1",
        "LLM_API_KEY": key,
        "LLM_NUM_RETRIES": "2",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENHANDS_SUPPRESS_BANNER": "1",
    }


def judge(outcome: Outcome) -> tuple[Exit, str]:
    """By the status of its conversation."""
    last = last_event(outcome, "result")
    if last is None:
        return no_end_signal(outcome)
    status, error = str(last["status"]), str(last["error"])
    if status == "finished" and outcome.exit_code == 0:
        return "completed", status
    return ("budget" if any(mark in error for mark in _SPENT) else "failed"), f"{status}: {error}"[:500]


def _environment(root: Path) -> Path:
    return python_environment(root, "openhands", _PACKAGE)
