"""Score what an agent left behind, where it cannot reach the scale.

After the agent's processes are gone, its workspace is copied without links that lead out, the task's own tests are
copied from the task folder, and `tests/test.sh` runs in a fresh sandbox without any network. It writes a number
from 0 to 1 to `$VERIFIER_REWARD_FILE`; Harbor's places (/tests, /logs/verifier/reward.txt or reward.json) work too.

A verdict is what was written by a test.sh that came to its end, whatever its exit code. Everything else is no
verdict, which is not a 0 (case O49). What the agent planted to score itself is taken out and reported (case O50).
The workspace's own programs, if test.sh runs them, can reach the verdict's folder. test.sh writes last, and a program
that runs on after it, or a verdict it could not write over, is refused; but a program that ends right after its own
write can still win a race. So test.sh must wait for what it starts, and check what it prints.
"""

import json
import math
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from proxy_addons.errors import VerifierError
from tasks.beside import LEFT
from tasks.rewards import answers
from tasks.rewards import reports
from tasks.rewards.rubric import Judge
from tasks.rewards.scoring import Scoring
from tasks.rewards.scoring import compose
from tasks.rewards.scoring import read_scoring
from tasks.sandboxes import WORKSPACE
from tasks.sandboxes import Outcome
from tasks.sandboxes import Sandbox
from tasks.sandboxes import Spec
from tasks.sandboxes.capture import last_lines
from tasks.tampering import is_cache
from tasks.tampering import is_forged_cache
from tasks.tampering import sways
from tasks.tampering import sways_by_name
from tasks.uncancelled import in_thread

MAX_BYTES = 1 << 30
MAX_FILES = 50_000
MAX_DEPTH = 100
MAX_PATH = 2048
"""Bytes of a path in the workspace: the system takes 4096, and it lies in folders with names of their own."""
MAX_FLAGS = 20
_MAX_REPORT = 8 << 20
_MAX_LEFT = 64 << 20

_TESTS = "/tests"
_VERDICT = "/verdict"
_HARBOR_VERDICT = "/logs/verifier"
_OUTLIVED = "outlived test.sh: "
# A program of the workspace that still runs when test.sh has ended could have written over the verdict, so there is
# none: the shell kills itself, which nothing in the sandbox can undo. What is ending just then gets a second.
_RUN = f"""\
before=" $(echo /proc/[0-9]*) "
bash {_TESTS}/test.sh
code=$?
for _ in {{1..20}}; do
    left=
    for process in /proc/[0-9]*; do
        [[ $before == *" $process "* ]] && continue
        {{ read -r line <$process/stat; }} 2>/dev/null || continue
        [[ ${{line##*) }} == [ZX]* ]] || left=$line
    done
    [ -z "$left" ] && exit $code
    sleep 0.05
done
name=${{left#*(}}
echo "{_OUTLIVED}${{name%)*}}; end what was started before the reward is written" >&2
kill -9 $$
"""
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
    judge: Judge | None = None,
    grade: Callable[[bytes | None, float], Awaitable[dict[str, float]]] | None = None,
) -> Verdict:
    """Run the task's test.sh on a copy of `workspace`; `name` is the sandbox's, for `reap`, `image` the task's.
    `judge` is asked about a task with a rubric, unless its outcome is below the gate already.

    With `grade`, the verdict is what it makes of what test.sh left for it, within as many seconds again.
    Raises ConfigError if the task has no tests, or no judge is there for its rubric, and InfrastructureError if the
    sandbox cannot be started or is lost.
    """
    if not (task_folder / "tests/test.sh").is_file():
        raise ConfigError(f"task {task_folder.name}: tests/test.sh is missing; it writes the reward")
    scoring = read_scoring(task_folder)
    if scoring.wants_judge and judge is None:
        raise ConfigError(f"task {task_folder.name}: its reward counts a rubric, and no judge is configured")
    with tempfile.TemporaryDirectory(prefix="openforge-verify-") as temporary:
        place = Path(temporary)
        try:
            flags = await in_thread(_lay_out, task_folder, workspace, place)
        except VerifierError as error:
            return Verdict(None, {}, str(error), ("workspace not scored",))
        if scoring.outcome in ("exact", "math"):
            return await _compare(scoring, task_folder, place / "workspace", flags)
        if scoring.outcome == "rubric":
            return await _judged(judge, task_folder, place / "workspace", flags)
        outcome = await sandbox.run(
            Spec(
                name=name or f"verify-{uuid.uuid4().hex[:12]}",
                argv=("bash", "-c", _RUN),
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
            if grade is None:
                parts = _read(outcome, place / "verdict", scoring)
            else:
                _check_end(outcome)
                parts = await grade(_bytes(place / "verdict" / LEFT, _MAX_LEFT), timeout_s)
            if judge and scoring.wants_judge and parts.get(scoring.outcome, 0.0) >= scoring.gate:
                parts["rubric"] = await judge.score(task_folder, place / "workspace")
            reward = compose(scoring, parts)
        except VerifierError as error:
            if outcome.reason == "killed" and _OUTLIVED in _said(outcome):
                flags = (*flags, "process outlived test.sh")
            return Verdict(None, {}, f"{error}{_said(outcome)}", flags)
        if scoring == Scoring():
            del parts["reward"]  # it is the reward
        return Verdict(reward, parts, f"test.sh exited with {outcome.exit_code}{_said(outcome)}", flags)


async def _judged(judge: Judge | None, task_folder: Path, workspace: Path, flags: tuple[str, ...]) -> Verdict:
    assert judge is not None
    try:
        reward = await judge.score(task_folder, workspace)
    except VerifierError as error:
        return Verdict(None, {}, str(error), flags)
    return Verdict(reward, {}, f"judged by {judge.client.provider.model}", flags)


def _lay_out(task_folder: Path, workspace: Path, place: Path) -> tuple[str, ...]:
    for name in ("home", "verdict"):
        (place / name).mkdir()
    place.chmod(0o755)
    shutil.copytree(task_folder / "tests", place / "tests")
    for path in (place / "tests", *(place / "tests").rglob("*")):
        path.chmod(0o755)
    try:
        flags = [*_snapshot(workspace, place / "workspace", task_folder), *_restore_tests(place)]
    except OSError as error:  # a name too long, a folder that is gone: whatever an agent can leave
        raise VerifierError(f"the workspace cannot be copied: {error.strerror}") from None
    shown = [os.fsencode(flag).decode(errors="replace") for flag in flags]
    more = [f"and {len(shown) - MAX_FLAGS} more"] if len(shown) > MAX_FLAGS else []
    return (*shown[:MAX_FLAGS], *more)


def _snapshot(workspace: Path, copy: Path, task_folder: Path) -> Iterator[str]:
    """Copy what a verifier may see; yields what was left out or is suspicious."""
    file = task_folder / "instruction.md"
    instruction = file.read_text() if file.is_file() else ""
    copy.mkdir()
    files = size = 0
    for parent, folders, names in os.walk(workspace):
        if len(Path(parent).relative_to(workspace).parts) > MAX_DEPTH:
            raise VerifierError(f"the workspace has folders more than {MAX_DEPTH} deep; it was not scored")
        for name in sorted(folders + names):
            source = Path(parent, name)
            relative = source.relative_to(workspace)
            if len(os.fsencode(relative)) > MAX_PATH:
                raise VerifierError(f"the workspace has a path of more than {MAX_PATH} bytes; it was not scored")
            target, original = copy / relative, task_folder / "environment" / relative
            found = source.lstat()
            files, mode = files + 1, found.st_mode
            size += found.st_size if stat.S_ISREG(mode) else 0
            if files > MAX_FILES or size > MAX_BYTES:
                raise VerifierError(
                    f"the workspace has more than {MAX_FILES} files or {MAX_BYTES >> 20} MB; it was not scored"
                )
            if stat.S_ISDIR(mode):
                target.mkdir()
                if not os.access(source, os.R_OK | os.X_OK):
                    yield f"unreadable: {relative}"
                continue
            if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
                yield f"special file: {relative}"
                continue
            if name in _VERDICT_NAMES:
                yield f"verdict file in the workspace: {relative}"
            if stat.S_ISREG(mode) and not os.access(source, os.R_OK):
                yield f"unreadable: {relative}"
            elif stat.S_ISREG(mode) and is_cache(relative):
                if is_forged_cache(source):
                    yield f"planted: {relative}"
            elif sways_by_name(relative, workspace, instruction) or (
                stat.S_ISREG(mode) and sways(relative, source, original)
            ):
                yield from _put_original(source, target, relative, original)
            elif stat.S_ISREG(mode):
                _copy_file(source, target)
            elif _leads_out(relative, link := os.readlink(source)):
                yield f"link out of the workspace: {relative} -> {link}"
            else:
                target.symlink_to(link)


def _put_original(source: Path, target: Path, relative: Path, original: Path) -> Iterator[str]:
    """The task's own version of a file that sways a test, or none."""
    if not original.is_file():
        yield f"planted: {relative}"
        return
    _copy_file(original, target)
    if source.is_symlink() or original.read_bytes() != source.read_bytes():
        yield f"changed: {relative}"


def _copy_file(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def _restore_tests(place: Path) -> Iterator[str]:
    """Put the trusted version over a test that the workspace holds too, so that either path runs the same."""
    inside = place / "workspace/tests"
    if inside.is_symlink():  # never followed: on this side it would lead to the host's files
        inside.unlink()
        shutil.copytree(place / "tests", inside)
        yield "changed: tests"
        return
    for trusted in sorted(path for path in (place / "tests").rglob("*") if path.is_file()):
        relative = trusted.relative_to(place)
        copy = place / "workspace" / relative
        links = [path for path in (copy, *copy.parents) if path.is_relative_to(inside) and path.is_symlink()]
        if links:
            links[-1].unlink()
            copy.parent.mkdir(parents=True, exist_ok=True)
        if links or (copy.is_file() and copy.read_bytes() != trusted.read_bytes()):
            copy.unlink(missing_ok=True)
            shutil.copy(trusted, copy)
            yield f"changed: {relative}"


def _leads_out(relative: Path, link: str) -> bool:
    """Whether a link, as seen in the sandbox, ends outside the workspace. The system's own programs are allowed."""
    down = list(dropwhile(lambda part: part == "..", Path(link).parts))
    if ".." in down:  # up again from a place that may be a link itself: only following it would tell
        return True
    path = os.path.normpath(os.path.join(WORKSPACE, relative.parent, link))
    return not any(path == top or path.startswith(f"{top}/") for top in (WORKSPACE, "/usr"))


async def _compare(scoring: Scoring, task_folder: Path, workspace: Path, flags: tuple[str, ...]) -> Verdict:
    """The verdict of a task whose answer is a text. No answer, or a link in its place, is a wrong one."""
    expected = task_folder / "tests/expected.txt"
    if not expected.is_file():
        raise ConfigError(f"task {task_folder.name}: tests/expected.txt is missing; the answer is compared with it")
    file = workspace / scoring.answer
    if file.resolve() != file or not file.is_file():
        return Verdict(0.0, {}, f"there is no {scoring.answer}", flags)
    with file.open(errors="replace") as opened:
        answer = opened.read(answers.MAX_CHARS + 1)
    try:
        if scoring.outcome == "exact":
            reward = answers.exact(answer, expected.read_text())
        else:
            reward = await answers.math(answer, expected.read_text())
    except VerifierError as error:
        return Verdict(None, {}, str(error), flags)
    return Verdict(reward, {}, f"{scoring.answer} {'is' if reward else 'is not'} the expected one", flags)


def _read(outcome: Outcome, folder: Path, scoring: Scoring) -> dict[str, float]:
    """The parts of the verdict that test.sh left, `reward` among them if it wrote one."""
    _check_end(outcome)
    text, fields = _bytes(folder / "reward.txt"), _bytes(folder / "reward.json")
    parts = _parts(fields) if fields is not None else {}
    if text is not None:
        parts["reward"] = _number("reward", text.decode(errors="replace").strip())
    elif "reward" not in parts and scoring == Scoring():
        raise VerifierError(f"test.sh exited with {outcome.exit_code} and wrote no reward")
    if scoring.wants_tests:
        for name in reports.NAMES:
            if (data := _bytes(folder / name, _MAX_REPORT)) is not None:
                return parts | {"tests": reports.share_passed(name, data)}
        raise VerifierError(f"test.sh exited with {outcome.exit_code} and wrote neither {' nor '.join(reports.NAMES)}")
    return parts


def _check_end(outcome: Outcome) -> None:
    if outcome.reason != "exited":
        raise VerifierError(f"test.sh did not come to its end: {outcome.reason}, {outcome.detail}")


def _bytes(file: Path, limit: int = 65536) -> bytes | None:
    """What the file holds; None if there is none. Never through a link: it could lead anywhere on the host."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise VerifierError(f"{file.name} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise VerifierError(f"{file.name} is not a plain file")
        if not status.st_mode & stat.S_IWUSR:  # a program of the workspace kept test.sh from writing it
            raise VerifierError(f"{file.name} is write-protected")
        if status.st_size > limit:
            raise VerifierError(f"{file.name} has {status.st_size} bytes, more than the {limit} that are read")
        return opened.read(limit)


def _parts(data: bytes) -> dict[str, float]:
    try:
        fields = json.loads(data)
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
