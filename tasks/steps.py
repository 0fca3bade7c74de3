"""Tasks of several steps, in Harbor's form: one workspace, and for each step an instruction and tests of its own.

    task.toml                    [[steps]] name = "…", in their order; multi_step_reward_strategy = "mean" or "final"
    environment/, tests/         the workspace, and tests that all steps share
    steps/<name>/instruction.md  what the agent is asked; the harness begins a new session
    steps/<name>/workdir/        put into the workspace before; its setup.sh is run there, as the agent
    steps/<name>/tests/          put over tests/; test.sh in one of the two

After a step its tests give a verdict; one below `min_reward` ends the task. The reward is the mean over the steps that
ran, or the last one's. A step whose verifier gave no verdict leaves the whole task without one.
"""

import math
import shutil
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any

from proxy_addons.errors import InfrastructureError
from proxy_addons.errors import VerifierError
from tasks.sandboxes import Outcome
from tasks.sandboxes import Sandbox
from tasks.sandboxes import Spec
from tasks.sandboxes.capture import last_lines
from tasks.uncancelled import in_thread
from tasks.verify import Verdict
from tasks.verify import verify

STRATEGIES = ("mean", "final")
NO_INSTRUCTION = "instruction.md is missing, empty or not UTF-8; it is what the agent is asked to do"
_NOT_HERE = ("healthcheck",)


@dataclass(frozen=True)
class Step:
    """One step. `min_reward`: part of the verdict → what it must have for the next step to begin."""

    name: str
    instruction: str
    folder: Path
    agent_timeout_s: float
    verifier_timeout_s: float
    min_reward: Mapping[str, float]


def instruction(folder: Path) -> str:
    """What instruction.md in `folder` says; empty if there is none that can be read."""
    try:
        return (folder / "instruction.md").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def read(
    folder: Path, data: Mapping[str, Any], agent_s: float, verifier_s: float
) -> tuple[tuple[Step, ...], list[str]]:
    """The steps that a task.toml with `data` names, and what is wrong with them; the limits are the task's own."""
    named = data.get("steps", [])
    if not isinstance(named, list) or not all(isinstance(entry, dict) for entry in named):
        return (), ["task.toml: steps must be tables ([[steps]])"]
    steps, problems = [], [] if named else ["task.toml names no step ([[steps]])"]
    for entry in named:
        name = entry.get("name")
        if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
            problems.append(f"task.toml: a step's name must be that of a folder in steps/, not {name!r}")
            continue
        where = folder / "steps" / name
        text = instruction(where)
        if not text:
            problems.append(f"steps/{name}/{NO_INSTRUCTION}")
        if not any((place / "tests/test.sh").is_file() for place in (where, folder)):
            problems.append(f"steps/{name}/tests/test.sh is missing, and tests/test.sh too; one writes the reward")
        problems += [
            f"task.toml: steps.{key} of {name} is not run here; leave it out" for key in _NOT_HERE if key in entry
        ]
        if _table(entry, "verifier").get("environment_mode", "shared") != "shared":
            problems.append(f"task.toml: steps.verifier.environment_mode of {name} must be shared")
        limits = {}
        for kind, default in (("agent", agent_s), ("verifier", verifier_s)):
            limits[kind] = _table(entry, kind).get("timeout_sec", default)
            if not _is_number(limits[kind]) or limits[kind] <= 0:
                problems.append(f"task.toml: steps.{kind}.timeout_sec of {name} must be a positive number of seconds")
        least = entry.get("min_reward", {})
        least = {"reward": least} if _is_number(least) else least
        if not isinstance(least, dict) or not all(map(_is_number, least.values())):
            problems.append(f"task.toml: steps.min_reward of {name} must be a number or a table of numbers")
            least = {}
        steps.append(Step(name, text, where, limits["agent"], limits["verifier"], least))
    names = [step.name for step in steps]
    if len(set(names)) < len(names):
        problems.append("task.toml: two steps have one name")
    there = {path.name for path in (folder / "steps").glob("*/")}
    problems += [f"steps/{name}: task.toml does not name it" for name in sorted(there - set(names))]
    if data.get("multi_step_reward_strategy", "mean") not in STRATEGIES:
        problems.append(f"task.toml: multi_step_reward_strategy must be one of {', '.join(STRATEGIES)}")
    return tuple(steps), problems


async def run(
    task_folder: Path,
    steps: Sequence[Step],
    spec: Spec,
    session: Callable[[Step, Spec], Awaitable[tuple[Outcome, bool]]],
    sandbox: Sandbox,
    scratch: Path,
) -> tuple[Outcome, list[Verdict]]:
    """Run the steps in `spec`'s workspace; how the last session ended, and a verdict for each step that has one.

    `session` runs the harness on a step and says whether it ended as one that may go on. One that was lost has no
    verdict. Raises VerifierError if a step cannot be set up and InfrastructureError if a sandbox is lost.
    """
    verdicts: list[Verdict] = []
    for number, step in enumerate(steps):
        name = f"{spec.name}-step{number}" if number else spec.name
        await begin(step, replace(spec, name=f"{name}-setup", log_dir=scratch / f"setup{number}"), sandbox)
        outcome, ended = await session(step, replace(spec, name=name, log_dir=scratch / f"log{number}"))
        if outcome.reason not in ("exited", "timeout"):
            break
        as_one = await in_thread(as_task, task_folder, steps[: number + 1], scratch / f"step{number}")
        limit_s, box = step.verifier_timeout_s, f"{name}-verify"
        verdicts.append(await verify(as_one, spec.workspace, limit_s, sandbox, box, spec.image))
        if not ended or not goes_on(step, verdicts[-1]):
            break
    return outcome, verdicts


async def begin(step: Step, spec: Spec, sandbox: Sandbox) -> None:
    """Put the step's files into `spec`'s workspace and run its setup.sh, if it has one, where the agent will work and
    without a way out. Raises VerifierError and InfrastructureError as `run`."""
    try:
        await in_thread(lay_out, step, spec.workspace)
    except OSError as error:  # whatever the agent left there
        raise VerifierError(f"step {step.name}: its files cannot be put into the workspace: {error.strerror}") from None
    if not (step.folder / "workdir/setup.sh").is_file():
        return
    quiet = replace(spec, argv=("bash", "setup.sh"), env={}, proxy=None, tools=None, first_call_s=None, payload=None)
    outcome = await sandbox.run(replace(quiet, binds_ro={}, rollout=None, wall_s=step.verifier_timeout_s))
    if outcome.reason == "lost":
        raise InfrastructureError(f"the sandbox of {step.name}'s setup.sh was lost: {outcome.detail}")
    if (outcome.reason, outcome.exit_code) != ("exited", 0):
        said = last_lines(outcome.stderr_path, 1, 200)
        raise VerifierError(f"step {step.name}: setup.sh failed ({outcome.reason}, {outcome.exit_code}): {said}")


def lay_out(step: Step, workspace: Path) -> None:
    """Put the step's own files into the workspace, where the agent has worked before: never through a link of its."""
    for source in sorted((step.folder / "workdir").rglob("*")):
        target = workspace / source.relative_to(step.folder / "workdir")
        if target.is_symlink() or (target.exists() and target.is_dir() != source.is_dir()):
            target.unlink() if not target.is_dir() or target.is_symlink() else shutil.rmtree(target)
        if source.is_dir():
            target.mkdir(exist_ok=True)
        else:
            shutil.copy(source, target)


def as_task(task_folder: Path, steps: Sequence[Step], place: Path) -> Path:
    """A folder at `place` that is the last of `steps` as a task of its own, for the verifier; the others ran before."""
    step = steps[-1]
    shutil.copytree(task_folder / "environment", place / "environment", symlinks=True)
    for before in steps:
        if (before.folder / "workdir").is_dir():
            shutil.copytree(before.folder / "workdir", place / "environment", symlinks=True, dirs_exist_ok=True)
    for tests in (task_folder / "tests", step.folder / "tests"):
        if tests.is_dir():
            shutil.copytree(tests, place / "tests", dirs_exist_ok=True)
    shutil.copy(task_folder / "task.toml", place)
    (place / "instruction.md").write_text(step.instruction)
    return place


def goes_on(step: Step, verdict: Verdict) -> bool:
    """Whether the next step begins. A part that is missing is below any threshold, and so is no verdict."""
    if verdict.reward is None:
        return False
    parts = {**verdict.parts, "reward": verdict.reward}
    return all(parts.get(name, -math.inf) >= least for name, least in step.min_reward.items())


def combine(strategy: str, steps: Sequence[Step], verdicts: Sequence[Verdict]) -> Verdict:
    """The task's verdict of those of the steps that ran (`multi_step.py`: `_select_multi_step_reward`).

    `mean` is over the steps that ran, each reward kept in the parts under its step's name. Harbor's own mean leaves
    steps without a verdict out; here they leave the task without one.
    """
    ran = list(zip(steps, verdicts, strict=False))
    flags = tuple(dict.fromkeys(flag for verdict in verdicts for flag in verdict.flags))
    for step, verdict in ran:
        if verdict.reward is None:
            return Verdict(None, {}, f"step {step.name}: {verdict.reason}", flags)
    rewards = {step.name: verdict.reward for step, verdict in ran if verdict.reward is not None}
    if not rewards:
        return Verdict(None, {}, "no step was scored", flags)
    reward = verdicts[-1].reward if strategy == "final" else sum(rewards.values()) / len(rewards)
    said = f"{len(ran)} of {len(steps)} steps; the last: {verdicts[-1].reason}"
    return Verdict(reward, rewards, said, flags)


def _table(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = entry.get(name, {})
    return value if isinstance(value, Mapping) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
