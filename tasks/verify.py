"""Score what an agent left behind, where it cannot reach the scale.

After the agent's processes are gone, its workspace is copied without links that lead out, the task's own tests are
copied from the task folder, and `tests/test.sh` runs in a fresh sandbox without any network. It writes a number
from 0 to 1 to `$VERIFIER_REWARD_FILE`; Harbor's places (/tests, /logs/verifier/reward.txt or reward.json) work too.

A verdict is what was written by a test.sh that came to its end, whatever its exit code. Everything else is no
verdict, which is not a 0 (case O49). What the agent planted to score itself is taken out and reported (case O50).
The workspace's own programs, if test.sh runs them, can reach the reward file: a test must check what they print.
"""

import asyncio
import json
import math
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from proxy_addons.errors import VerifierError
from tasks.sandboxes import WORKSPACE
from tasks.sandboxes import Outcome
from tasks.sandboxes import Sandbox
from tasks.sandboxes import Spec
from tasks.sandboxes.capture import last_lines

MAX_BYTES = 1 << 30
MAX_FILES = 50_000

_TESTS = "/tests"
_VERDICT = "/verdict"
_HARBOR_VERDICT = "/logs/verifier"
# Files that change how a test runs by merely lying there; the task's own version counts, or none.
_CONTROL = {"conftest.py", "pytest.ini", "sitecustomize.py", "usercustomize.py"}
_VERDICT_NAMES = {"reward.txt", "reward.json"}
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Verdict:
    """`reward` in 0..1, or None: no verdict, and `reason` says why. `flags` report what was found planted.

    `parts` are the other numbers of a reward.json.
    """

    reward: float | None
    parts: dict[str, float]
    reason: str
    flags: tuple[str, ...]

    @property
    def error_class(self) -> str | None:
        """The failure class for the rollout's record."""
        return VerifierError.__name__ if self.reward is None else None


async def verify(
    task_folder: Path,
    workspace: Path,
    timeout_s: float,
    sandbox: Sandbox,
    name: str | None = None,
    image: str | None = None,
) -> Verdict:
    """Run the task's test.sh on a copy of `workspace`; `name` is the sandbox's, for `reap`, `image` the task's.

    Raises ConfigError if the task has no tests and InfrastructureError if the sandbox cannot be started or is lost.
    """
    if not (task_folder / "tests/test.sh").is_file():
        raise ConfigError(f"task {task_folder.name}: tests/test.sh is missing; it writes the reward")
    with tempfile.TemporaryDirectory(prefix="openforge-verify-") as temporary:
        place = Path(temporary)
        try:
            flags = await asyncio.to_thread(_lay_out, task_folder, workspace, place)
        except VerifierError as error:
            return Verdict(None, {}, str(error), ())
        outcome = await sandbox.run(
            Spec(
                name=name or f"verify-{uuid.uuid4().hex[:12]}",
                argv=("bash", f"{_TESTS}/test.sh"),
                env={"VERIFIER_REWARD_FILE": f"{_VERDICT}/reward.txt", "TEST_DIR": _TESTS},
                workspace=place / "workspace",
                home=place / "home",
                log_dir=place / "logs",
                binds_ro={_TESTS: place / "tests"},
                binds_rw={_VERDICT: place / "verdict", _HARBOR_VERDICT: place / "verdict"},
                wall_s=timeout_s,
                image=image,
            )
        )
        if outcome.reason == "lost":
            raise InfrastructureError(f"the verifier's sandbox was lost: {outcome.detail}")
        try:
            reward, parts = _read(outcome, place / "verdict")
        except VerifierError as error:
            return Verdict(None, {}, f"{error}{_said(outcome)}", flags)
        return Verdict(reward, parts, f"test.sh exited with {outcome.exit_code}{_said(outcome)}", flags)


def _lay_out(task_folder: Path, workspace: Path, place: Path) -> tuple[str, ...]:
    for name in ("home", "verdict"):
        (place / name).mkdir()
    place.chmod(0o755)
    shutil.copytree(task_folder / "tests", place / "tests")
    for path in (place / "tests", *(place / "tests").rglob("*")):
        path.chmod(0o755)
    return (*_snapshot(workspace, place / "workspace", task_folder / "environment"), *_restore_tests(place))


def _snapshot(workspace: Path, copy: Path, original: Path) -> Iterator[str]:
    """Copy what a verifier may see; yields what was left out or is suspicious."""
    copy.mkdir()
    files = size = 0
    for parent, folders, names in os.walk(workspace):
        for name in sorted(folders + names):
            source = Path(parent, name)
            relative = source.relative_to(workspace)
            target, mode = copy / relative, source.lstat().st_mode
            if stat.S_ISLNK(mode):
                link = os.readlink(source)
                if _leads_out(relative, link):
                    yield f"link out of the workspace: {relative} -> {link}"
                else:
                    target.symlink_to(link)
            elif stat.S_ISDIR(mode):
                target.mkdir()
            elif not stat.S_ISREG(mode):
                yield f"special file: {relative}"
            else:
                files, size = files + 1, size + source.lstat().st_size
                if files > MAX_FILES or size > MAX_BYTES:
                    raise VerifierError(
                        f"the workspace has more than {MAX_FILES} files or {MAX_BYTES >> 20} MB; it was not scored"
                    )
                yield from _copy_file(source, target, relative, original / relative)


def _copy_file(source: Path, target: Path, relative: Path, original: Path) -> Iterator[str]:
    if source.name in _VERDICT_NAMES:
        yield f"verdict file in the workspace: {relative}"
    if source.name not in _CONTROL:
        shutil.copyfile(source, target)
        target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
    elif not original.is_file():
        yield f"planted: {relative}"
    else:
        shutil.copyfile(original, target)
        if original.read_bytes() != source.read_bytes():
            yield f"changed: {relative}"


def _restore_tests(place: Path) -> Iterator[str]:
    """Put the trusted version over a test that the workspace holds too, so that either path runs the same."""
    for trusted in sorted(path for path in (place / "tests").rglob("*") if path.is_file()):
        relative = trusted.relative_to(place)
        copy = place / "workspace" / relative
        if copy.is_file() and copy.read_bytes() != trusted.read_bytes():
            copy.unlink()
            shutil.copy(trusted, copy)
            yield f"changed: {relative}"


def _leads_out(relative: Path, link: str) -> bool:
    """Whether a link, as seen in the sandbox, ends outside the workspace. The system's own programs are allowed."""
    path = os.path.normpath(os.path.join(WORKSPACE, relative.parent, link))
    return not any(path == top or path.startswith(f"{top}/") for top in (WORKSPACE, "/usr"))


def _read(outcome: Outcome, folder: Path) -> tuple[float, dict[str, float]]:
    if outcome.reason != "exited":
        raise VerifierError(f"test.sh did not come to its end: {outcome.reason}, {outcome.detail}")
    text, fields = _text(folder / "reward.txt"), _text(folder / "reward.json")
    parts = _parts(fields) if fields is not None else {}
    if text is None and "reward" not in parts:
        raise VerifierError(f"test.sh exited with {outcome.exit_code} and wrote no reward")
    return _number("reward", parts.pop("reward", None) if text is None else text), parts


def _text(file: Path) -> str | None:
    """The file's text; None if there is none. Never through a link: it could lead anywhere on the host."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise VerifierError(f"{file.name} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise VerifierError(f"{file.name} is not a plain file")
        return opened.read(65536).decode(errors="replace").strip()


def _parts(text: str) -> dict[str, float]:
    try:
        fields = json.loads(text)
    except ValueError:
        raise VerifierError("reward.json is not JSON") from None
    if not isinstance(fields, dict):
        raise VerifierError("reward.json is not an object")
    return {name: _number(name, value, limited=name == "reward") for name, value in fields.items()}


def _number(name: str, value: Any, limited: bool = True) -> float:
    text = str(value)
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(number) or (limited and not 0 <= number <= 1):
        wanted = "a number from 0 to 1" if limited else "a number"
        raise VerifierError(f"{name} is {text[:40]!r}, not {wanted}")
    return number


def _said(outcome: Outcome) -> str:
    said = last_lines(outcome.stderr_path, 3, 300) or last_lines(outcome.stdout_path, 3, 300)
    return f"; it said: {said}" if said else ""
