"""Canaries: a task is kept if its own solution scores 1, doing nothing scores 0, and its verifier says so every time.

All through the verifier that scores rollouts, so that a test.sh which leaves a program running, or trusts a file that
the verifier takes away, is found before anybody trains on it.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from proxy_addons.errors import InfrastructureError
from proxy_addons.errors import VerifierError
from tasks import steps
from tasks.git_history import fresh_workspace
from tasks.sandboxes import Sandbox
from tasks.sandboxes import Spec
from tasks.sandboxes.capture import last_lines
from tasks.steps import Step
from tasks.taskset import Task
from tasks.uncancelled import in_thread
from tasks.verify import verify

_SOLUTION = "/solution"


async def check_all(tasks: Sequence[Task], sandbox: Sandbox, at_once: int, repeats: int = 2) -> dict[str, str]:
    """Task id → why it should be dropped, for those that should. Raises as `why_dropped` does."""
    slots = asyncio.Semaphore(at_once)

    async def one(task: Task) -> str | None:
        async with slots:
            return await why_dropped(task, sandbox, repeats)

    reasons = await asyncio.gather(*map(one, tasks))
    return {task.id: reason for task, reason in zip(tasks, reasons, strict=True) if reason}


async def why_dropped(task: Task, sandbox: Sandbox, repeats: int = 2, box: str = "canary") -> str | None:
    """The first reason not to keep `task`; None if there is none. Each workspace is scored `repeats` times. The
    sandboxes' names start with `box`, for `reap`. In a task of several steps each step's solution must score 1 and have
    what lets the next step begin (`min_reward`), and doing nothing in it 0 where the steps before are solved.

    Raises InfrastructureError if a sandbox is lost, and ConfigError if the task cannot be scored at all.
    """
    for folder in [step.folder for step in task.steps] or [task.folder]:
        if not (solution := folder / "solution/solve.sh").is_file():
            missing = solution.relative_to(task.folder)
            return f"no_solution: {missing} is missing, so nobody knows that it can be solved"
    if task.steps:
        return await _by_steps(task, sandbox, repeats, box)
    with tempfile.TemporaryDirectory(prefix="openforge-canary-") as temporary:
        for name, wanted in (("noop", 0.0), ("solution", 1.0)):
            place = Path(temporary, name)
            await in_thread(fresh_workspace, task.environment, place / "workspace")
            if name == "solution" and (trouble := await _solve(task, sandbox, place, box)):
                return trouble
            if reason := await _score(task, sandbox, place, f"{box}-{task.id}", name, wanted, repeats):
                return reason
    return None


async def _by_steps(task: Task, sandbox: Sandbox, repeats: int, box: str) -> str | None:
    """The first reason not to keep a task of several steps; each begins where the one before was solved."""
    with tempfile.TemporaryDirectory(prefix="openforge-canary-") as temporary:
        place = Path(temporary, "place")
        await in_thread(fresh_workspace, task.environment, place / "workspace")
        (place / "home").mkdir()
        for number, step in enumerate(task.steps):
            one = await in_thread(_as_task, task, number, Path(temporary, f"step{number}"))
            spec = _spec(one, place, f"{box}-{one.id}-setup", ("true",))
            try:
                await steps.begin(step, spec, sandbox)
            except VerifierError as error:
                return f"no_verdict: {error}"
            ends = None if step is task.steps[-1] else step
            reason = (
                await _score(one, sandbox, place, f"{box}-{one.id}", "noop", 0.0, repeats)
                or await _solve(one, sandbox, place, box)
                or await _score(one, sandbox, place, f"{box}-{one.id}", "solution", 1.0, repeats, ends)
            )
            if reason:
                return f"{reason} (step {step.name})"
    return None


def _as_task(task: Task, number: int, folder: Path) -> Task:
    """Step `number` as a task of its own, with its solution, in `folder`."""
    step = task.steps[number]
    steps.as_task(task.folder, task.steps[: number + 1], folder)
    shutil.copytree(step.folder / "solution", folder / "solution")
    return replace(
        task,
        id=f"{task.id}-step{number}",
        folder=folder,
        agent_timeout_s=step.agent_timeout_s,
        verifier_timeout_s=step.verifier_timeout_s,
        steps=(),
    )


async def _solve(task: Task, sandbox: Sandbox, place: Path, box: str) -> str | None:
    (place / "home").mkdir(exist_ok=True)
    spec = _spec(task, place, f"{box}-{task.id}-solve", ("bash", f"{_SOLUTION}/solve.sh"))
    outcome = await sandbox.run(replace(spec, binds_ro={_SOLUTION: task.folder / "solution"}))
    if outcome.reason == "lost":
        raise InfrastructureError(f"the sandbox of the solution of {task.id} was lost: {outcome.detail}")
    if outcome.reason != "exited":
        said = last_lines(outcome.stderr_path, 1, 200)
        return f"solution_failed: {outcome.reason}, {outcome.detail}{': ' if said else ''}{said}"
    return None


def _spec(task: Task, place: Path, name: str, argv: tuple[str, ...]) -> Spec:
    return Spec(
        name=name,
        argv=argv,
        env={},
        workspace=place / "workspace",
        home=place / "home",
        log_dir=place / f"{name}-logs",
        wall_s=task.agent_timeout_s,
        image=task.image,
    )


async def _score(
    task: Task,
    sandbox: Sandbox,
    place: Path,
    box: str,
    name: str,
    wanted: float,
    repeats: int,
    ends: Step | None = None,
) -> str | None:
    """Why the workspace's verdicts are not all `wanted`, or let no step follow the one that `ends`; None if all is
    well."""
    seen: list[float] = []
    for number in range(repeats):
        verdict = await verify(
            task.folder, place / "workspace", task.verifier_timeout_s, sandbox, f"{box}-{name}{number}", task.image
        )
        if verdict.reward is None:
            return f"no_verdict: of {name}: {verdict.reason}"
        if verdict.flags:
            return f"flagged: {name} without any agent: {verdict.flags[0]}"
        if ends and not steps.goes_on(ends, verdict):
            has, wants = map(_listed, (verdict.parts | {"reward": verdict.reward}, ends.min_reward))
            return f"{name}_scores: {has}, but min_reward wants {wants} for the next step to begin"
        seen.append(verdict.reward)
    if len(set(seen)) > 1:
        return f"flaky: the same {name} scored {' and '.join(f'{reward:g}' for reward in sorted(set(seen)))}"
    if seen[0] != wanted:
        return f"{name}_scores: {seen[0]:g}, not {wanted:g}"
    return None


def _listed(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in parts.items())
