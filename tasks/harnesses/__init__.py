"""Harnesses: one module each, found here by name. Adding one is adding a file and its name below.

A module offers the constants and functions of `Harness`; the rollout calls nothing else. The binaries are the
published ones, unmodified, in the versions of deploy/harnesses/ (`make harnesses`, `make harnesses-all`). Claude Code
and Codex are set to their smallest request, for small policies; the others ask with their own prompts, mini-swe-agent's
of 800 tokens, the others' of 5,000 to 17,000. `browser` is our own, for policies that see (docs/browser.md).
"""

import json
import platform
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from typing import Literal
from typing import Protocol
from typing import cast

from proxy_addons.errors import ConfigError
from proxy_addons.errors import HarnessError
from proxy_addons.errors import InfrastructureError
from proxy_addons.errors import OpenForgeError
from proxy_addons.errors import PolicyFailure
from tasks.mcp import McpServer
from tasks.sandboxes import Outcome
from tasks.sandboxes.capture import last_lines

NAMES = (
    "browser",
    "claude_code",
    "codex",
    "gemini_cli",
    "mini_swe_agent",
    "openclaw",
    "opencode",
    "openhands",
    "qwen_code",
)
SYSTEM_PROMPT = "Solve the task with the shell tool."
"""What both harnesses tell the policy in their small configuration."""
GO_ON = "The session was interrupted. Go on with the task."
"""What a harness that goes on with a session is given to say."""
INSTALL = Path(".openforge/harnesses")
"""Where `make harnesses` puts them, below the repository."""

NODE = "/opt/node"
"""Where Node lies inside the sandbox."""

Exit = Literal["completed", "budget", "timeout", "failed", "no_call", "lost"]
"""`completed`: the harness ended as it should. `budget`, `timeout`: the agent used up its turns, tokens or time.
`failed`: the harness gave up. `no_call`: it never called the model. `lost`: the sandbox was taken away."""

_ERRORS: dict[Exit, type[OpenForgeError] | None] = {
    "completed": None,
    "budget": PolicyFailure,
    "timeout": PolicyFailure,
    "failed": HarnessError,
    "no_call": HarnessError,
    "lost": InfrastructureError,
}


@dataclass(frozen=True)
class End:
    """How a rollout's harness ended. `error_class` is a name of proxy_addons.errors, None if all went well."""

    exit: Exit
    reason: str
    error_class: str | None

    @property
    def scored(self) -> bool:
        """Whether the verifier's verdict on it is a reward."""
        return self.error_class in (None, PolicyFailure.__name__)


class Harness(Protocol):
    """What a harness module offers.

    `SETTINGS` says in a message where to look. `IMAGE_PATHS` are the folders that its image for a cluster holds, at
    their paths inside the sandbox; none: there can be no such image. `base_url` and `key` are the rollout's, as seen
    inside the sandbox.
    """

    NAME: str
    SETTINGS: str
    IMAGE_PATHS: tuple[str, ...]

    def binary(self, root: Path) -> Path:
        """The program on the host. Raises ConfigError if it is not installed below `root`."""

    def version(self, root: Path) -> str: ...

    def binds(self, root: Path) -> dict[str, Path]:
        """Path inside the sandbox → installed folder, read-only."""

    def prepare(self, home: Path, base_url: str, key: str, model: str) -> None:
        """Write the harness's own settings into the sandbox's home folder."""

    def command(self, instruction: str, base_url: str, key: str, model: str) -> tuple[str, ...]: ...

    def env(self, base_url: str, key: str, model: str) -> dict[str, str]: ...

    def judge(self, outcome: Outcome) -> tuple[Exit, str]:
        """What the harness itself said about its end; only asked when it exited by itself."""


class Resumable(Harness, Protocol):
    """A harness that can go on with a session whose sandbox is gone. `SESSIONS` finds its sessions' files in its home,
    as a glob pattern."""

    SESSIONS: str

    def keeping(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """`command`'s words, so that a session is written down."""

    def resume(self, argv: tuple[str, ...], calls: int) -> tuple[str, ...]:
        """`command`'s words, so that it goes on with its last session, in which so many model calls were answered."""


def resumable(harness: Harness) -> Resumable | None:
    """The harness as one that can go on with a session; None if it cannot."""
    return cast(Resumable, harness) if hasattr(harness, "resume") else None


class McpAble(Harness, Protocol):
    """A harness that can be given MCP servers."""

    def with_mcp(self, argv: tuple[str, ...], servers: Sequence[McpServer]) -> tuple[str, ...]:
        """`command`'s words, so that it starts `servers` and offers their tools."""

    def unstarted(self, outcome: Outcome) -> tuple[str, ...]:
        """The servers without which it went on, because they did not start."""


def mcp_able(harness: Harness, task: str) -> McpAble:
    """The harness as one that can be given the MCP servers of `task`. Raises ConfigError."""
    if not hasattr(harness, "with_mcp"):
        raise ConfigError(
            f"task {task}: it has MCP servers, and {harness.NAME} cannot be given any here; use claude_code or codex"
        )
    return cast(McpAble, harness)


def load(name: str) -> Harness:
    """The harness `name`. Raises ConfigError."""
    if name not in NAMES:
        raise ConfigError(f"harness {name!r}: use one of {', '.join(NAMES)}")
    return cast(Harness, import_module(f"{__name__}.{name}"))


def end(harness: Harness, outcome: Outcome, calls: int, base_url: str) -> End:
    """Classify a finished run; `calls` is how many model calls the proxy recorded for it.

    A run without a call is no sample, however politely it exited (case O81), and a run whose sandbox was killed
    says nothing about the policy (case O44).
    """
    kind, reason = _kind(harness, outcome)
    if kind != "lost" and calls == 0:
        kind = "no_call"
        reason = (
            f"no model call: {harness.NAME} ({outcome.reason}, exit {outcome.exit_code}) never called {base_url}; "
            f"see {harness.SETTINGS}; {reason or 'it said nothing'}"
        )
    error = _ERRORS[kind]
    return End(kind, reason, error.__name__ if error else None)


def _kind(harness: Harness, outcome: Outcome) -> tuple[Exit, str]:
    match outcome.reason:
        case "exited":
            return harness.judge(outcome)
        case "timeout":
            return "timeout", outcome.detail
        case "no_call":
            return "no_call", outcome.detail
        case _:
            return "lost", f"{outcome.reason}: {outcome.detail}"


def installed(root: Path, package: str, *parts: str) -> Path:
    """A file of an npm package below `root`. Raises ConfigError if it is not there."""
    path = root / "node_modules" / package
    target = "harnesses" if package.startswith(("@anthropic-ai/", "@openai/")) else "harnesses-all"
    if not path.joinpath(*parts).exists():
        raise ConfigError(f"harness: {package} is not installed in {root}; run `make {target}`")
    return path.joinpath(*parts)


def node_folder(root: Path) -> Path:
    """The Node that some harnesses run on, from npm too; `NODE` inside the sandbox."""
    return installed(root, f"node-linux-{cpu()}")


def cpu() -> str:
    """This machine's processor as npm's platform packages spell it."""
    machine = platform.machine()
    names = {"x86_64": "x64", "aarch64": "arm64"}
    if machine not in names:
        raise ConfigError(f"harness: no build for {machine}; use an x86_64 or aarch64 Linux machine")
    return names[machine]


def package_version(root: Path, package: str) -> str:
    """The installed version of an npm package."""
    return str(json.loads(installed(root, package, "package.json").read_text())["version"])


def python_environment(root: Path, name: str, package: str) -> Path:
    """The virtual environment `name` below `root`. Raises ConfigError if `package` is not installed in it."""
    environment = root / name
    if not (environment / "bin/python").exists() or _installed_version(environment, package) is None:
        raise ConfigError(f"harness: {package} is not installed in {environment}; run `make harnesses-all`")
    return environment


def python_version(environment: Path, package: str) -> str:
    """The version of `package` in an environment that has it."""
    return str(_installed_version(environment, package))


def python_binds(environment: Path, inside: str) -> dict[str, Path]:
    """The environment at `inside`, and the interpreter that it links to where it lies on the host; every sandbox has
    /usr already."""
    base = (environment / "bin/python").resolve().parents[1]
    return {inside: environment} | ({} if base.is_relative_to("/usr") else {str(base): base})


def _installed_version(environment: Path, package: str) -> str | None:
    folders = [str(folder) for folder in environment.glob("lib/python3*/site-packages")]
    return next((found.version for found in distributions(name=package, path=folders)), None)


def json_lines(outcome: Outcome) -> list[Mapping[str, Any]]:
    """The JSON objects among the lines of standard output, in order."""
    found: list[Mapping[str, Any]] = []
    for line in outcome.stdout_path.read_text(errors="replace").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def last_event(outcome: Outcome, *types: str) -> Mapping[str, Any] | None:
    """The last JSON line whose `type` is one of `types`: the harness's own last word. None if it said none."""
    return next((line for line in reversed(json_lines(outcome)) if line.get("type") in types), None)


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write a harness's settings file as JSON, in a folder that need not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings))


def no_end_signal(outcome: Outcome) -> tuple[Exit, str]:
    """The judgement on a harness that exited without its own last word."""
    said = last_lines(outcome.stderr_path) or last_lines(outcome.stdout_path) or "nothing"
    return "failed", f"exit {outcome.exit_code} without an end signal; it said: {said}"
