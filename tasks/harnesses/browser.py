"""A browser that the policy sees: Debian's Chromium, driven by Playwright, screenshots over Chat Completions.

`browser_run.py`, beside this file, is the program around it: one picture a turn, one JSON action back. It is ours, as
there is no published one to leave as it is; what it asks and how a task looks is in docs/browser.md.
"""

from pathlib import Path

from proxy_addons.errors import ConfigError
from tasks.harnesses import Exit
from tasks.harnesses import last_event
from tasks.harnesses import no_end_signal
from tasks.harnesses import python_binds
from tasks.harnesses import python_environment
from tasks.harnesses import python_version
from tasks.sandboxes import HOME
from tasks.sandboxes import Outcome

NAME = "browser"
SETTINGS = "its environment and tasks/harnesses/browser_run.py"

CHROMIUM = Path("/usr/lib/chromium/chromium")
"""The program itself: Debian's /usr/bin/chromium is a script that wants /etc/chromium.d, which no sandbox has."""

_PACKAGE = "playwright"
_INSIDE = "/opt/browser"
IMAGE_PATHS: tuple[str, ...] = ()  # its interpreter and Chromium are this machine's, which no task image has
_SCRIPT = "/opt/browser_run.py"
_FONTS = """\
<?xml version="1.0"?>
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <cachedir>/tmp/fonts</cachedir>
  <match target="pattern">
    <edit name="family" mode="append_last"><string>DejaVu Sans</string></edit>
  </match>
</fontconfig>
"""


def binary(root: Path) -> Path:
    """Its environment's interpreter. Raises ConfigError if Chromium is missing too."""
    python = _environment(root) / "bin/python"
    if not CHROMIUM.exists():
        raise ConfigError(
            f"harness: Chromium is not installed in {CHROMIUM.parent}; run `make harnesses-all` as root, or "
            "`apt-get install chromium fonts-dejavu-core`"
        )
    return python


def version(root: Path) -> str:
    """Playwright's, as installed. Chromium's is in the reason of a rollout's end."""
    return python_version(_environment(root), _PACKAGE)


def binds(root: Path) -> dict[str, Path]:
    """Its environment, the interpreter, and the program; Chromium is in /usr, which every sandbox has."""
    return python_binds(_environment(root), _INSIDE) | {_SCRIPT: Path(__file__).with_name("browser_run.py")}


def prepare(home: Path, base_url: str, key: str, model: str) -> None:
    """Where the fonts are: the host's /etc/fonts is not in the sandbox."""
    (home / "fonts.conf").write_text(_FONTS)


def command(instruction: str, base_url: str, key: str, model: str) -> tuple[str, ...]:
    """One task."""
    return (f"{_INSIDE}/bin/python", _SCRIPT, str(CHROMIUM), "--", instruction)


def env(base_url: str, key: str, model: str) -> dict[str, str]:
    """Where the model is, and the fonts."""
    return {
        "FONTCONFIG_FILE": f"{HOME}/fonts.conf",
        "OPENAI_API_KEY": key,
        "OPENAI_BASE_URL": f"{base_url}/v1",
        "OPENAI_MODEL": model,
    }


def judge(outcome: Outcome) -> tuple[Exit, str]:
    """By the status that it prints at the end."""
    last = last_event(outcome, "result")
    if last is None:
        return no_end_signal(outcome)
    match last["status"]:
        case "done":
            return "completed", f"done, in {last['browser']}"
        case "budget":
            return "budget", str(last["reason"])
        case _:
            return "failed", str(last["reason"])


def _environment(root: Path) -> Path:
    return python_environment(root, NAME, _PACKAGE)
