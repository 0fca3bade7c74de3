"""One slot of a group: a task, a harness, a sandbox, a recording, a verdict. A bad rollout is data, not a crash.

A slot is filled by tries. A try that our own machinery broke (`InfrastructureError`) is followed by another, up to the
run's limit; it never becomes a reward. With `continue_cut` the next one goes on with it (`tasks.cut`). What the agent
may have broken itself (`ServiceDied`) is its failure if it breaks in a later try too. Each try leaves two files, its
calls and its row, both whole or not there, so that a run that was cut off knows what is still owed.
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
from proxy_addons.errors import HarnessError
from proxy_addons.errors import InfrastructureError
from proxy_addons.errors import OpenForgeError
from proxy_addons.errors import PolicyFailure
from proxy_addons.identity import Rollout
from proxy_addons.live import Limits
from proxy_addons.packing import has_calls
from proxy_addons.packing import read_calls
from tasks import steps
from tasks import transcript
from tasks.beside import SERVICE_DIED
from tasks.beside import ServiceDied
from tasks.cut import WRITTEN_S
from tasks.cut import Cut
from tasks.cut import carry_sessions
from tasks.cut import missing_calls
from tasks.deadline import FINDING
from tasks.deadline import Deadline
from tasks.deadline import Overdue
from tasks.deadline import late
from tasks.git_history import fresh_workspace
from tasks.harnesses import Harness
from tasks.harnesses import Resumable
from tasks.harnesses import end
from tasks.harnesses import mcp_able
from tasks.harnesses import resumable
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
from tasks.uncancelled import in_thread
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
    continue_cut: bool = False

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
        if row is not None and fills(row):
            return row if has_calls(str(calls_path(folder, rollout))) else None
        rollout = rollout.next_try()
    return None


def fills(row: Mapping[str, Any]) -> bool:
    """Whether a try filled its slot; one that our own machinery broke did not."""
    return row["error_class"] not in ("InfrastructureError", "ConfigError")


def row_path(folder: Path, rollout: Rollout) -> Path:
    """Where a try's row lies."""
    return folder / "rollouts" / f"{rollout.id}.parquet"


def calls_path(folder: Path, rollout: Rollout) -> Path:
    """Where a try's recorded calls lie."""
    return folder / "calls" / f"{rollout.id}.parquet"


def read_row(path: Path) -> dict[str, Any] | None:
    """A rollout's row, or None if it is not there or not whole."""
    try:
        return records.read(str(path), records.ROLLOUTS)[0]
    except records.TORN:
        return None


async def fill(slot: Slot, arena: Arena, deadline: Deadline | None = None) -> dict[str, Any]:
    """Run tries at `slot` until one ends by itself, or by the group's `deadline`; returns the last try's row. Nothing
    of it is left running."""
    rollout = slot.rollout
    # The slot is held from try to try: what has begun is finished before anything new begins.
    cut: Cut | None = None
    died = False
    async with arena.slots.place(rollout.epoch), late(deadline) as overdue:
        while True:
            row, cut = await _try(slot, rollout, arena, overdue, cut, died)
            path = row_path(arena.folder, rollout)
            await in_thread(records.write, str(path), records.table([row], records.ROLLOUTS))
            if row["error_class"] != "InfrastructureError" or rollout.try_ + 1 >= arena.tries:
                return row
            rollout = rollout.next_try()
            died |= SERVICE_DIED in row["findings"]


async def _try(
    slot: Slot, rollout: Rollout, arena: Arena, overdue: "asyncio.Future[str]", earlier: Cut | None, died: bool
) -> tuple[dict[str, Any], Cut | None]:
    """One try, from registration to verdict, as a `rollouts` row. It goes on with `earlier`, if it can; returned too is
    what the next try can go on with, if it was cut. `died`: an earlier one ended by `ServiceDied`."""
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
        "continues": None,
        "complete": False,
        "calls": 0,
        "reward": None,
        "error_class": None,
        "calls_path": str(calls_path(arena.folder, rollout)),
        "findings": [],
        "finding_counts": {},
    }
    timings: dict[str, float] = {}
    summary: dict[str, Any] = {}
    scratch, left, gone_on = arena.scratch / rollout.id, None, None
    try:
        gone_on = await in_thread(_lay_out, slot, scratch, earlier)
        if gone_on:
            row["continues"], timings["rollout"] = gone_on.rollout.try_, gone_on.used_s
        with _timed(timings, "rollout"):
            outcome, verdicts = await _run_harness(slot, rollout, arena, scratch, row, summary, overdue, gone_on)
        row |= _classify(slot, arena, outcome, summary)
        if gone_on:
            await asyncio.to_thread(_check_session, slot, outcome, row, gone_on)
        if row["error_class"] in (None, "PolicyFailure"):
            with _timed(timings, "score"):
                if slot.task.steps:
                    row |= _entered(steps.combine(slot.task.step_reward, slot.task.steps, verdicts), row)
                else:
                    row |= await _score(slot, arena, scratch, row)
    except ServiceDied as error:
        row |= {"error_class": error.error_class, "reason": str(error), "exit": SERVICE_DIED}
        row |= _found(row, SERVICE_DIED)
        if died:  # twice, each time at this policy's calls, is no accident; a third try would let it escape its verdict
            row |= {"error_class": PolicyFailure.__name__, "reward": 0.0, "verdict_reason": f"in a retry too: {error}"}
    except OpenForgeError as error:
        row |= {"error_class": error.error_class, "reason": str(error), "exit": row.get("exit") or "not_started"}
    except Overdue as error:
        row |= {"reason": str(error), "exit": "overdue"} | _found(row, FINDING)
    finally:
        if summary.get("kept"):
            cuts = (*(gone_on.cuts if gone_on else ()), summary["calls"])
            left = Cut(rollout, scratch, timings["rollout"], summary["answered"], cuts)
        else:
            await in_thread(remove, scratch)
    counts = records.to_json(row["finding_counts"])
    return row | {"ended_at": datetime.now(UTC), "timings": records.to_json(timings), "finding_counts": counts}, left


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
    slot: Slot,
    rollout: Rollout,
    arena: Arena,
    scratch: Path,
    row: dict[str, Any],
    summary: dict[str, Any],
    overdue: "asyncio.Future[str]",
    gone_on: Cut | None,
) -> tuple[Outcome, list[Verdict]]:
    """The harness in its sandbox, until it ends, our side breaks or it is overdue; the steps' verdicts.

    The proxy's `summary` is filled, and what was recorded entered in `row`, however it ends. The summary says `kept`
    if it was cut so that the next try can go on with it.
    """
    key = secrets.token_urlsafe(32)
    base_url = f"{PROXY_URL}/r/{rollout.id}"
    workspace, home = scratch / "workspace", scratch / "home"
    task, proxy = slot.task, await arena.proxy.replica(rollout)
    argv = _command(slot, task.instruction, base_url, key)
    path = calls_path(arena.folder, rollout)
    hosts, before = (task.allow_hosts, task.model_hosts), gone_on.rollout if gone_on else None
    await proxy.register(rollout, slot.harness.NAME, key, path, arena.limits, *hosts, before)
    able = _resumable(slot, arena)
    keeps = able is not None and rollout.try_ + 1 < arena.tries
    if able:
        argv = able.resume(able.keeping(argv), gone_on.answered) if gone_on else able.keeping(argv)
    used_s = gone_on.used_s if gone_on else 0.0
    try:
        slot.harness.prepare(home, base_url, key, MODEL_NAME)
        way_out, env, binds = proxy.address, {}, arena.binds(slot.harness)
        if task.allow_hosts or task.model_hosts:
            way_out, env = proxy.egress, egress_env(PROXY_URL, rollout, key, _TRUSTED)
            binds = binds | {_TRUSTED: scratch / "trusted.pem"}
            binds[_TRUSTED].write_text(proxy.trusted)
        spec = Spec(
            name=rollout.id,
            argv=argv,
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
            wall_s=max(min(arena.timeout_s, slot.task.agent_timeout_s) - used_s, 0.0),
            first_call_s=min(FIRST_CALL_S, arena.timeout_s),
        )
        async with task.beside.running(scratch / "beside") if task.beside else contextlib.nullcontext() as tools:
            spec = replace(spec, tools=tools)

            async def session(step: steps.Step, spec: Spec) -> tuple[Outcome, bool]:
                argv = _command(slot, step.instruction, base_url, key)
                spec = replace(spec, argv=argv, wall_s=min(arena.timeout_s, step.agent_timeout_s))
                outcome = await _unless_broken(arena.sandbox.run(spec), proxy.failure(rollout), overdue, 0.0)
                if step is task.steps[0]:
                    await asyncio.to_thread(_check_servers, slot, outcome)
                return outcome, end(slot.harness, outcome, 1, base_url).scored

            verdicts: list[Verdict] = []
            if task.steps:
                outcome, verdicts = await steps.run(task.folder, task.steps, spec, session, arena.sandbox, scratch)
            else:
                written_s = WRITTEN_S if keeps else 0.0
                outcome = await _unless_broken(arena.sandbox.run(spec), proxy.failure(rollout), overdue, written_s)
                if not gone_on:
                    await asyncio.to_thread(_check_servers, slot, outcome)
    except BaseException as error:
        keep = keeps and isinstance(error, InfrastructureError)
        with contextlib.suppress(InfrastructureError):  # the first error is the one to tell
            _enter(row, summary, await asyncio.shield(proxy.end(rollout, keep)))
        raise
    lost = end(slot.harness, outcome, 1, base_url).exit == "lost"
    _enter(row, summary, await proxy.end(rollout, keeps and lost))
    return outcome, verdicts


def _command(slot: Slot, instruction: str, base_url: str, key: str) -> tuple[str, ...]:
    """The harness's words, with the task's MCP servers in them. Raises ConfigError if it cannot be given any."""
    argv = slot.harness.command(instruction, base_url, key, MODEL_NAME)
    servers = slot.task.mcp_servers
    return mcp_able(slot.harness, slot.task.id).with_mcp(argv, servers) if servers else argv


def _check_servers(slot: Slot, outcome: Outcome) -> None:
    """Raises HarnessError if the policy never had the tools of one of the task's MCP servers. Only of a first session:
    in a later one a server in the workspace can be what the policy made of it."""
    if not slot.task.mcp_servers or outcome.reason not in ("exited", "timeout"):
        return
    if names := mcp_able(slot.harness, slot.task.id).unstarted(outcome):
        raise HarnessError(
            f"task {slot.task.id}: its MCP server {', '.join(names)} did not start in {slot.harness.NAME}; "
            "see environment.mcp_servers in its task.toml"
        )


def _enter(row: dict[str, Any], summary: dict[str, Any], told: Mapping[str, Any]) -> None:
    summary |= told
    row |= {name: told[name] for name in _FROM_PROXY}


def _resumable(slot: Slot, arena: Arena) -> Resumable | None:
    """The harness, if a cut rollout can be gone on with: steps and services beside the sandbox begin afresh."""
    if not arena.continue_cut or slot.task.steps or slot.task.beside:
        return None
    return resumable(slot.harness)


async def _unless_broken(run: Any, failure: Any, overdue: "asyncio.Future[str]", after_s: float) -> Outcome:
    """The outcome of `run`; ended early, as an infrastructure failure, `after_s` after `failure` returns, or as
    overdue."""
    running, broken = asyncio.ensure_future(run), asyncio.ensure_future(failure)
    try:
        await asyncio.wait({running, broken, overdue}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        if not broken.done():
            raise Overdue(overdue.result())
        await asyncio.wait({running}, timeout=after_s)
        raise InfrastructureError(broken.result())
    finally:
        for task in (running, broken):
            task.cancel()
        await asyncio.gather(running, broken, return_exceptions=True)


def remove(folder: Path) -> None:
    """Remove what an agent worked in. Not by shutil.rmtree: folders can be nested deeper than Python recurses."""
    subprocess.run(["rm", "-rf", "--", str(folder)], check=False)


def _lay_out(slot: Slot, scratch: Path, earlier: Cut | None) -> Cut | None:
    """Make a try's workspace and home: `earlier`'s, which is returned, if its harness left a session, else fresh ones.
    What else `earlier` left is removed."""
    remove(scratch)
    (scratch / "home").mkdir(parents=True)
    able, gone_on = resumable(slot.harness), None
    if earlier and able and carry_sessions(able.SESSIONS, earlier.folder / "home", scratch / "home"):
        (earlier.folder / "workspace").rename(scratch / "workspace")
        gone_on = earlier
    else:
        fresh_workspace(slot.task.environment, scratch / "workspace")
    if earlier:
        remove(earlier.folder)
    return gone_on


def _check_session(slot: Slot, outcome: Outcome, row: Mapping[str, Any], gone_on: Cut) -> None:
    """Raises InfrastructureError if the harness did not really go on with its session."""
    if row["calls"] == gone_on.calls and outcome.reason != "timeout":
        raise InfrastructureError(f"{slot.harness.NAME} did not go on with its session ({outcome.reason})")
    if missing_calls(read_calls(row["calls_path"], ("call", "parent_call", "status", "findings")), gone_on):
        raise InfrastructureError(f"the session of {slot.harness.NAME} lacked the last of what it had done")


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
        **_found(row, *verdict.flags),
    }


def _found(row: Mapping[str, Any], *codes: str) -> dict[str, Any]:
    """A row's findings with these, which are about the rollout."""
    counts = row["finding_counts"] | dict.fromkeys(codes, 1)
    return {"findings": [*row["findings"], *codes], "finding_counts": counts}


@contextlib.contextmanager
def _timed(timings: dict[str, float], name: str) -> Iterator[None]:
    start = time.monotonic()
    try:
        yield
    finally:
        timings[name] = round(timings.get(name, 0.0) + time.monotonic() - start, 3)
