"""One slot of a group: a task, a harness, a sandbox, a recording, a verdict. A bad rollout is data, not a crash.

A slot is filled by tries. A try that our own machinery broke (`InfrastructureError`) is followed by another, up to the
run's limit; it never becomes a reward. Each try leaves two files, its calls and its row, both whole or not there, so
that a run that was cut off knows what is still owed.
"""

import asyncio
import contextlib
import functools
import secrets
import subprocess
import time
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from datetime import UTC
from datetime import datetime
from pathlib import Path
from typing import Any

from proxy_addons import records
from proxy_addons.errors import InfrastructureError
from proxy_addons.errors import OpenForgeError
from proxy_addons.errors import PolicyFailure
from proxy_addons.identity import Rollout
from proxy_addons.live import Limits
from proxy_addons.packing import has_calls
from proxy_addons.packing import read_calls
from tasks import steps
from tasks import transcript
from tasks.deadline import FINDING
from tasks.deadline import Deadline
from tasks.deadline import Overdue
from tasks.deadline import late
from tasks.git_history import fresh_workspace
from tasks.harnesses import Harness
from tasks.harnesses import end
from tasks.proxies import Proxies
from tasks.proxy import Proxy
from tasks.proxy import egress_env
from tasks.rewards.rubric import Judge
from tasks.sandboxes import PROXY_URL
from tasks.sandboxes import Outcome
from tasks.sandboxes import Sandbox
from tasks.sandboxes import Spec
from tasks.slots import Slots
from tasks.taskset import Task
from tasks.verify import Verdict
from tasks.verify import verify

MODEL_NAME = "policy-v1"
_TRUSTED = "/opt/trusted.pem"
FIRST_CALL_S = 150.0
"""How long a harness may take to ask the model first. OpenClaw takes 20 s on an idle machine and more than 60 s beside
ten others."""


@dataclass(frozen=True)
class Arena:
    """What the rollouts of a run share. `folder` is one stage's own; `slots` bounds the rollouts at a time.

    `versions`: the harnesses come from images, which say these versions; None: they are installed in `harness_root`.
    """

    proxy: Proxy | Proxies
    sandbox: Sandbox
    harness_root: Path
    folder: Path
    scratch: Path
    limits: Limits
    memory_mb: int
    cpus: float
    pids: int
    timeout_s: float
    tries: int
    slots: Slots
    judge: Judge | None = None
    versions: Mapping[str, str] | None = None

    def version(self, harness: Harness) -> str:
        """The harness's version."""
        return harness.version(self.harness_root) if self.versions is None else self.versions[harness.NAME]

    def binds(self, harness: Harness) -> dict[str, Path]:
        """Path inside the sandbox → the harness's installed folder; where it comes from an image, only the paths."""
        if self.versions is None:
            return harness.binds(self.harness_root)
        return {path: Path(path) for path in harness.IMAGE_PATHS}


@dataclass(frozen=True)
class Slot:
    """A place in a group that one rollout fills."""

    rollout: Rollout
    task: Task
    harness: Harness
    kind: str

    @property
    def group(self) -> str:
        return f"{self.rollout.run}-e{self.rollout.epoch:03}-{self.rollout.task}"


def recorded(folder: Path, slot: Slot, tries: int) -> dict[str, Any] | None:
    """The row that fills `slot`, or None if it is still owed; torn files count as not there (cases O65, O66)."""
    rollout = slot.rollout
    for _ in range(tries):
        row = read_row(row_path(folder, rollout))
        if row is not None and row["error_class"] not in ("InfrastructureError", "ConfigError"):
            return row if has_calls(str(calls_path(folder, rollout))) else None
        rollout = rollout.next_try()
    return None


def row_path(folder: Path, rollout: Rollout) -> Path:
    """Where a try's row lies."""
    return folder / "rollouts" / f"{rollout.id}.parquet"


def calls_path(folder: Path, rollout: Rollout) -> Path:
    """Where a try's recorded calls lie."""
    return folder / "calls" / f"{rollout.id}.parquet"


def read_row(path: Path) -> dict[str, Any] | None:
    """A rollout's row, or None if it is not there or not whole."""
    if not records.is_whole(str(path)):
        return None
    return records.read(str(path), records.ROLLOUTS)[0]


async def fill(slot: Slot, arena: Arena, deadline: Deadline | None = None) -> dict[str, Any]:
    """Run tries at `slot` until one ends by itself, or by the group's `deadline`; returns the last try's row. Nothing
    of it is left running."""
    rollout = slot.rollout
    # The slot is held from try to try: what has begun is finished before anything new begins.
    async with arena.slots.place(rollout.epoch), late(deadline) as overdue:
        while True:
            row = await _try(slot, rollout, arena, overdue)
            path = row_path(arena.folder, rollout)
            await asyncio.to_thread(records.write, str(path), records.table([row], records.ROLLOUTS))
            if row["error_class"] != "InfrastructureError" or rollout.try_ + 1 >= arena.tries:
                return row
            rollout = rollout.next_try()


async def _try(slot: Slot, rollout: Rollout, arena: Arena, overdue: "asyncio.Future[str]") -> dict[str, Any]:
    """One try, from registration to verdict, as a `rollouts` row."""
    started = datetime.now(UTC)
    row: dict[str, Any] = {
        "schema_version": records.SCHEMA_VERSION,
        "run": rollout.run,
        "epoch": rollout.epoch,
        "task": rollout.task,
        "sample": rollout.sample,
        "try": rollout.try_,
        "rollout": rollout.id,
        "group": slot.group,
        "split": slot.task.split,
        "kind": slot.kind,
        "harness": slot.harness.NAME,
        "harness_version": arena.version(slot.harness),
        "sandbox": arena.sandbox.name,
        "started_at": started,
        "complete": False,
        "calls": 0,
        "reward": None,
        "error_class": None,
        "calls_path": str(calls_path(arena.folder, rollout)),
        "findings": [],
        "finding_counts": {},
    }
    timings: dict[str, float] = {}
    scratch = arena.scratch / rollout.id
    try:
        with _timed(timings, "rollout"):
            outcome, summary, verdicts = await _run_harness(slot, rollout, arena, scratch, row, overdue)
        row |= _classify(slot, arena, outcome, summary)
        if row["error_class"] in (None, "PolicyFailure"):
            with _timed(timings, "score"):
                if slot.task.steps:
                    row |= _entered(steps.combine(slot.task.step_reward, slot.task.steps, verdicts), row)
                else:
                    row |= await _score(slot, arena, scratch, row)
    except OpenForgeError as error:
        row |= {"error_class": error.error_class, "reason": str(error), "exit": row.get("exit") or "not_started"}
    except Overdue as error:
        row |= {"reason": str(error), "exit": "overdue", "findings": [*row["findings"], FINDING]}
        row["finding_counts"] = row["finding_counts"] | {FINDING: 1}
    finally:
        await asyncio.to_thread(remove, scratch)
    counts = records.to_json(row["finding_counts"])
    return row | {"ended_at": datetime.now(UTC), "timings": records.to_json(timings), "finding_counts": counts}


_FROM_PROXY = (
    "complete",
    "calls",
    "chains",
    "prompt_tokens",
    "sampled_tokens",
    "weight_version",
    "findings",
    "finding_counts",
)


async def _run_harness(
    slot: Slot, rollout: Rollout, arena: Arena, scratch: Path, row: dict[str, Any], overdue: "asyncio.Future[str]"
) -> tuple[Outcome, dict[str, Any], list[Verdict]]:
    """The harness in its sandbox, until it ends, our side breaks or it is overdue; the proxy's summary; the steps'
    verdicts.

    What was recorded is entered in `row` however it ends.
    """
    key = secrets.token_urlsafe(32)
    base_url = f"{PROXY_URL}/r/{rollout.id}"
    workspace, home = scratch / "workspace", scratch / "home"
    await asyncio.to_thread(_lay_out, slot.task, workspace, home)
    task, proxy = slot.task, await arena.proxy.replica(rollout)
    path = calls_path(arena.folder, rollout)
    await proxy.register(rollout, slot.harness.NAME, key, path, arena.limits, task.allow_hosts, task.model_hosts)
    try:
        slot.harness.prepare(home, base_url, key, MODEL_NAME)
        way_out, env, binds = proxy.address, {}, arena.binds(slot.harness)
        if task.allow_hosts or task.model_hosts:
            way_out, env = proxy.egress, egress_env(PROXY_URL, rollout, key, _TRUSTED)
            binds = binds | {_TRUSTED: scratch / "trusted.pem"}
            binds[_TRUSTED].write_text(proxy.trusted)
        spec = Spec(
            name=rollout.id,
            argv=slot.harness.command(slot.task.instruction, base_url, key, MODEL_NAME),
            env=env | slot.harness.env(base_url, key, MODEL_NAME),
            workspace=workspace,
            home=home,
            log_dir=scratch / "log",
            proxy=way_out,
            binds_ro=binds,
            memory_mb=slot.task.memory_mb or arena.memory_mb,
            cpus=slot.task.cpus or arena.cpus,
            pids=arena.pids,
            image=slot.task.image,
            payload=slot.harness.NAME,
            rollout=rollout,
            wall_s=min(arena.timeout_s, slot.task.agent_timeout_s),
            first_call_s=min(FIRST_CALL_S, arena.timeout_s),
        )
        async with task.beside.running(scratch / "beside") if task.beside else contextlib.nullcontext() as tools:
            spec = replace(spec, tools=tools)

            async def session(step: steps.Step, spec: Spec) -> tuple[Outcome, bool]:
                argv = slot.harness.command(step.instruction, base_url, key, MODEL_NAME)
                spec = replace(spec, argv=argv, wall_s=min(arena.timeout_s, step.agent_timeout_s))
                outcome = await _unless_broken(arena.sandbox.run(spec), proxy.failure(rollout), overdue)
                return outcome, end(slot.harness, outcome, 1, base_url).scored

            verdicts: list[Verdict] = []
            if task.steps:
                outcome, verdicts = await steps.run(task.folder, task.steps, spec, session, arena.sandbox, scratch)
            else:
                outcome = await _unless_broken(arena.sandbox.run(spec), proxy.failure(rollout), overdue)
    except BaseException:
        with contextlib.suppress(InfrastructureError):  # the first error is the one to tell
            _enter(row, await asyncio.shield(proxy.end(rollout)))
        raise
    return outcome, _enter(row, await proxy.end(rollout)), verdicts


def _enter(row: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    row |= {name: summary[name] for name in _FROM_PROXY}
    return summary


async def _unless_broken(run: Any, failure: Any, overdue: "asyncio.Future[str]") -> Outcome:
    """The outcome of `run`; ended early, as an infrastructure failure, if `failure` returns first, or as overdue."""
    running, broken = asyncio.ensure_future(run), asyncio.ensure_future(failure)
    try:
        await asyncio.wait({running, broken, overdue}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        if not broken.done():
            raise Overdue(overdue.result())
        raise InfrastructureError(broken.result())
    finally:
        for task in (running, broken):
            task.cancel()
        await asyncio.gather(running, broken, return_exceptions=True)


def remove(folder: Path) -> None:
    """Remove what an agent worked in. Not by shutil.rmtree: folders can be nested deeper than Python recurses."""
    subprocess.run(["rm", "-rf", "--", str(folder)], check=False)


def _lay_out(task: Task, workspace: Path, home: Path) -> None:
    remove(workspace.parent)
    home.mkdir(parents=True)
    fresh_workspace(task.environment, workspace)


def _classify(slot: Slot, arena: Arena, outcome: Outcome, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Exit, reason and failure class of a harness that ran."""
    if summary["engine_failure"]:
        raise InfrastructureError(summary["engine_failure"])
    ended = end(slot.harness, outcome, summary["answered"], f"{PROXY_URL}/r/{slot.rollout.id}")
    row = {"exit_code": outcome.exit_code, "exit": ended.exit, "reason": ended.reason, "error_class": ended.error_class}
    if summary["out_of_budget"]:
        budget = summary["out_of_budget"]
        reason = {
            "out_of_calls": f"out of model calls ({arena.limits.max_calls})",
            "out_of_tokens": f"out of generated tokens ({arena.limits.max_total_tokens})",
        }[budget]
        row |= {"exit": budget, "reason": reason, "error_class": PolicyFailure.__name__}
    elif ended.exit == "failed" and summary["answered"] and _gave_up(outcome):
        # All its calls were answered, so what it gave up on is what the policy said: a real outcome, scored as it is.
        row |= {"exit": "gave_up", "error_class": PolicyFailure.__name__}
    return row


def _gave_up(outcome: Outcome) -> bool:
    """Whether the harness ended by its own decision, not by a crash."""
    return outcome.exit_code is not None and 0 <= outcome.exit_code < 128


async def _score(slot: Slot, arena: Arena, scratch: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict, or why there is none. A verifier whose sandbox was lost is run again on the same workspace."""
    task, workspace, grade = slot.task, scratch / "workspace", None
    if task.beside:
        calls = await asyncio.to_thread(read_calls, row["calls_path"], transcript.COLUMNS)
        grade = functools.partial(task.beside.grade, scratch / "beside", transcript.messages(calls))
    for left in reversed(range(arena.tries)):
        name = f"{row['rollout']}-verify{arena.tries - 1 - left or ''}"
        try:
            limit_s, image = task.verifier_timeout_s, task.image
            verdict = await verify(task.folder, workspace, limit_s, arena.sandbox, name, image, arena.judge, grade)
            break
        except InfrastructureError:
            if not left:
                raise
    return _entered(verdict, row)


def _entered(verdict: Verdict, row: Mapping[str, Any]) -> dict[str, Any]:
    """What a verdict is in a rollout's row."""
    return {
        "reward": verdict.reward,
        "reward_parts": records.to_json(verdict.parts),
        "verdict_reason": verdict.reason,
        "error_class": verdict.error_class or row["error_class"],
        "findings": [*row["findings"], *verdict.flags],
        "finding_counts": row["finding_counts"] | dict.fromkeys(verdict.flags, 1),
    }


@contextlib.contextmanager
def _timed(timings: dict[str, float], name: str) -> Iterator[None]:
    start = time.monotonic()
    try:
        yield
    finally:
        timings[name] = round(time.monotonic() - start, 3)
