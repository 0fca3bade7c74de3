"""Flow `openforge`, deployment `curate`: propose tasks, prune, build, test, probe and refine them; keep what teaches.

    make curate CONFIG='{"run": "set-1", "proposals": 400}'
    prefect deployment run openforge/curate -p 'config={"probe_attempts": 4, "refine_rounds": 1}'

Each stage of a round is a Prefect task; what it found lies in the run's folder, and the same name takes it up. The
probe is an evaluation (`flows.evaluate`) of a policy on what has come so far. docs/curation.md has the rules.

runs/<run>/round-00/{wishes.json,proposed/,built.jsonl,tested.jsonl,candidates/}
runs/<run>/probe/<run>-p00/      the probe, a run of its own
runs/<run>/asked/                what a model was asked
runs/<run>/tasks/                the kept set: `tasks: runs/<run>/tasks` trains on it
runs/<run>/funnel.parquet, funnel.json
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import field
from datetime import datetime
from pathlib import Path
from typing import Any
from typing import TypeVar

from prefect import flow
from prefect import task
from prefect.artifacts import acreate_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from rich.console import Console
from rich.table import Table

from flows.config import RolloutConfig
from flows.config import new_run_name
from flows.curate_config import CurateConfig
from flows.curate_config import load_curate_config
from flows.evaluate import evaluate
from flows.evaluate_config import EvaluateConfig
from proxy_addons import records
from proxy_addons.errors import ConfigError
from proxy_addons.errors import OpenForgeError
from tasks import adapters
from tasks import evaluation
from tasks import taskset
from tasks.adapters import Item
from tasks.curate import band
from tasks.curate import build
from tasks.curate import canaries
from tasks.curate import funnel
from tasks.curate import model_proposer
from tasks.curate import taskfolders
from tasks.curate import transcript
from tasks.curate import wishes
from tasks.curate.band import Measured
from tasks.curate.decisions import decide_all
from tasks.curate.model_proposer import ModelProposer
from tasks.curate.proposer import Proposer
from tasks.curate.proposer import TemplateProposer
from tasks.curate.prune import Limits
from tasks.curate.prune import prune
from tasks.curate.wishes import Wish
from tasks.epoch import stage
from tasks.provider import Client
from tasks.run import RunFolder
from tasks.run import held
from tasks.run import load_tasks
from tasks.run import open_run
from tasks.sandboxes import Sandbox
from tasks.sandboxes import choose
from tasks.taskset import Task

DEFAULTS = CurateConfig()
ASKED = "asked"
KEPT_SET = "tasks"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Workshop:
    """What the rounds of a curation share. `evaluated` are the instructions that no task may read like, by name."""

    config: CurateConfig
    run: RunFolder
    proposer: Proposer
    sandbox: Sandbox
    evaluated: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.run.path.name

    @property
    def box(self) -> str:
        """What the names of its sandboxes start with."""
        return f"{self.name}-check"


@dataclass
class Round:
    """What a round came to: `tasks` are in it still, `dropped` has the others' stage and reason."""

    number: int
    folder: Path
    wishes: Sequence[Wish]
    tasks: list[Task] = field(default_factory=list)
    dropped: dict[str, tuple[str, str]] = field(default_factory=dict)
    measured: dict[str, Measured] = field(default_factory=dict)

    @property
    def proposed(self) -> Path:
        return self.folder / "proposed"

    def drop(self, at: str, reasons: Mapping[str, str]) -> None:
        """Take the tasks in `reasons` out."""
        self.dropped |= {name: (at, reason) for name, reason in reasons.items()}
        self.tasks = [each for each in self.tasks if each.id not in reasons]


@flow(name="openforge", log_prints=True)
async def curate(config: CurateConfig = DEFAULTS) -> str:
    """Make a task set that a policy can learn from; returns its folder.

    Args:
        config: who proposes, what is kept, and with which policy it is tried. Fields left out come from the profile.
    """
    config = load_curate_config(config)
    async with _open(config, config.run or new_run_name(datetime.now(), "curate")) as shop:
        rounds: list[Round] = []
        wanted = wishes.first(config.proposals, config.seed, shop.proposer.levels, config.heldout_share)
        while wanted:
            number = len(rounds)
            current = Round(number, shop.run.path / f"round-{number:02}", wanted)
            rounds.append(current)
            await _propose(shop, current, rounds)
            await _prune(shop, current, rounds)
            await _build(shop, current)
            await _test(shop, current)
            wanted = []
            if config.probe_attempts and current.tasks:
                await _probe(shop, current)
                if number < config.refine_rounds:
                    wanted = await _refine(shop, current)
        return await _conclude(shop, rounds)


@asynccontextmanager
async def _open(config: CurateConfig, name: str) -> AsyncIterator[Workshop]:
    """Check everything first, then hold the run and the proposer for the time of the block."""
    evaluated = evaluation_tasks(config.evaluation_sets)
    sandbox = choose(config.sandbox)
    if config.endpoint:
        Client(config.endpoint)
    run = open_run(name, config.runs_dir, config.model_dump(mode="json") | {"run": name})
    with held(run):
        log = get_run_logger()
        for limit in sandbox.not_enforced():
            log.warning("sandbox %s: %s", sandbox.name, limit)
        for leftover in await asyncio.to_thread(sandbox.reap, f"{name}-check-"):
            log.warning("ended %s, left running by an execution of this run that died", leftover)
        proposer: Proposer = TemplateProposer(config.families)
        if config.endpoint:
            proposer = ModelProposer(config.endpoint, run.path / ASKED)
        yield Workshop(config, run, proposer, sandbox, evaluated)


def evaluation_tasks(sets: Sequence[str]) -> dict[str, str]:
    """The instructions of evaluation sets, by names that tell set and task: of `builtin` the held-out tasks', of a
    folder or a benchmark all, whether they can run here or not.

    Raises ConfigError if a folder is no task set.
    """
    found: dict[str, str] = {}
    for source in sets:
        tasks: Sequence[Task | Item]
        if benchmark := adapters.split(source):
            tasks = benchmark[0].read(benchmark[1])
        else:
            tasks = [each for each in load_tasks(source) if source != "builtin" or each.split == "heldout"]
        found |= {f"{source}/{each.id}": each.instruction for each in tasks}
    return found


async def _step(shop: Workshop, name: str, round_: int, work: Callable[[], Awaitable[Result]]) -> Result:
    """Do `work` as the Prefect task `name`, and note how long it took."""

    @task(name=name, task_run_name=f"{name}, round {round_}", cache_policy=NO_CACHE)
    async def step() -> Result:
        return await work()

    with stage(shop.run.path, name, round_):
        return await step()


def _say(current: Round, at: str, came: int) -> None:
    dropped = Counter(reason.split(":")[0] for where, reason in current.dropped.values() if where == at)
    why = f" ({', '.join(f'{count} {code}' for code, count in dropped.most_common())})" if dropped else ""
    print(f"{at}, round {current.number}: {came} came, {dropped.total()} dropped{why}")


async def _propose(shop: Workshop, current: Round, rounds: Sequence[Round]) -> None:
    parents = {each.task: before.proposed / each.task for before in rounds for each in before.wishes}

    async def work() -> dict[str, str]:
        current.folder.mkdir(parents=True, exist_ok=True)
        wishes.write(current.folder / "wishes.json", current.wishes)
        return await taskfolders.propose(current.proposed, current.wishes, shop.proposer, parents)

    current.drop("propose", await _step(shop, "propose", current.number, work))
    _say(current, "propose", len(current.wishes))


async def _prune(shop: Workshop, current: Round, rounds: Sequence[Round]) -> None:
    config = shop.config
    limits = Limits(config.max_instruction_chars, config.max_task_kb << 10, config.likeness)
    folders = [current.proposed / each.task for each in current.wishes if each.task not in current.dropped]
    kept = [each for before in rounds for each in [*before.tasks, *_hard(before)]]

    async def work() -> None:
        pruned = await asyncio.to_thread(prune, folders, kept, shop.evaluated, limits)
        current.tasks = list(pruned.tasks)
        current.drop("prune", pruned.dropped)

    await _step(shop, "prune", current.number, work)
    _say(current, "prune", len(folders))


async def _build(shop: Workshop, current: Round) -> None:
    async def work() -> dict[str, str]:
        return await decide_all(
            current.tasks,
            lambda each: build.why_dropped(each, shop.sandbox, shop.box),
            current.folder / "built.jsonl",
            shop.config.concurrency,
        )

    came = len(current.tasks)
    current.drop("build", await _step(shop, "build", current.number, work))
    _say(current, "build", came)


async def _test(shop: Workshop, current: Round) -> None:
    repeats = shop.config.canary_repeats

    async def work() -> dict[str, str]:
        return await decide_all(
            current.tasks,
            lambda each: canaries.why_dropped(each, shop.sandbox, repeats, shop.box),
            current.folder / "tested.jsonl",
            shop.config.concurrency,
        )

    came = len(current.tasks)
    current.drop("test", await _step(shop, "test", current.number, work))
    _say(current, "test", came)


def _probe_folder(shop: Workshop, current: Round) -> Path:
    return shop.run.path / "probe" / f"{shop.name}-p{current.number:02}"


async def _probe(shop: Workshop, current: Round) -> None:
    """Evaluate the policy on what is left, and drop what is outside the band; what is too hard stays until the end."""
    config = shop.config
    candidates = await asyncio.to_thread(taskfolders.collect, current.tasks, current.folder / "candidates")
    place = _probe_folder(shop, current)
    shared = {name: getattr(config, name) for name in RolloutConfig.model_fields}
    probe = EvaluateConfig.model_validate(
        shared
        | {"run": place.name, "runs_dir": str(place.parent), "tasks": str(candidates)}
        | {"split": "all", "k": 1, "attempts": config.probe_attempts}
    )
    with stage(shop.run.path, "probe", current.number):
        await evaluate(probe)
    current.measured = band.measured(evaluation.read_tasks(place))
    reasons = _outside(shop, current)
    came = len(current.tasks)
    current.drop("probe", reasons)
    _say(current, "probe", came)


def _outside(shop: Workshop, current: Round) -> dict[str, str]:
    config = shop.config
    return {
        name: reason
        for name, found in current.measured.items()
        if (reason := band.why_dropped(found, config.min_pass_rate, config.max_pass_rate))
    }


async def _refine(shop: Workshop, current: Round) -> list[Wish]:
    """The next round's wishes: harder variants of what was too easy, easier ones of what was too hard."""
    file = shop.run.path / f"round-{current.number + 1:02}" / "wishes.json"

    async def work() -> list[Wish]:
        known = wishes.read(file)
        return await asyncio.to_thread(_refined, shop, current) if known is None else known

    return await _step(shop, "refine", current.number, work)


def _refined(shop: Workshop, current: Round) -> list[Wish]:
    place = _probe_folder(shop, current)
    attempts = records.read(str(place / "attempts.parquet"), evaluation.ATTEMPTS, ["task", "rollout", "success"])
    found = []
    for wish in current.wishes:
        code = current.dropped.get(wish.task, ("", ""))[1].split(":")[0]
        rate = current.measured[wish.task].pass_rate if wish.task in current.measured else None
        if code not in ("too_easy", "too_hard") or rate is None:
            continue
        easy = code == "too_easy"
        told = [row["rollout"] for row in attempts if row["task"] == wish.task and row["success"] is easy]
        calls = place / evaluation.STAGE / "calls"
        text = transcript.read(calls / f"{told[0]}.parquet") if told else ""
        next_wish = wishes.refined(
            wish, "harder" if easy else "easier", current.number + 1, shop.proposer.levels, rate, text
        )
        found += [next_wish] if next_wish else []
    return found


async def _conclude(shop: Workshop, rounds: Sequence[Round]) -> str:
    """Write the kept set and the funnel; returns the set's folder. Raises ConfigError if nothing is kept."""
    config = shop.config
    inside = [each for current in rounds for each in current.tasks]
    hard = {each.id: each for current in rounds for each in _hard(current)}
    spared = band.spared(list(hard), len(inside), config.too_hard_share, config.seed)
    for current in rounds:
        current.dropped = {name: found for name, found in current.dropped.items() if name not in spared}
    kept = [*inside, *(hard[name] for name in spared)]
    asked = model_proposer.read_asked(shop.run.path / ASKED)
    rows = [_row(shop, current, wish, asked) for current in rounds for wish in current.wishes]
    facts = {"run": shop.name, "proposer": config.proposer, "config": config.model_dump(mode="json")}
    folder = shop.run.path / KEPT_SET
    if kept:
        await asyncio.to_thread(taskfolders.collect, sorted(kept, key=lambda each: each.id), folder)
    summary = await asyncio.to_thread(funnel.write, shop.run.path, rows, facts)
    await acreate_table_artifact(funnel.table(summary["funnel"]), key=f"{shop.name}-funnel")
    if not kept:
        code, count = Counter(row["code"] for row in rows).most_common(1)[0]
        raise ConfigError(f"none of {len(rows)} proposals is kept, {count} for {code}: see {shop.run.path}/funnel.json")
    print(f"kept {len(kept)} of {len(rows)} proposals: {folder}")
    return str(folder)


def _hard(current: Round) -> list[Task]:
    """The round's tasks that are too hard, of which some may stay in the end."""
    names = [name for name, (_, reason) in current.dropped.items() if reason.startswith("too_hard:")]
    return [found for name in names if (found := taskset.read(current.proposed / name)[0])]


def _row(shop: Workshop, current: Round, wish: Wish, asked: Mapping[str, model_proposer.Asked]) -> dict[str, Any]:
    at, reason = current.dropped.get(wish.task, (funnel.KEPT, None))
    measured, told = current.measured.get(wish.task), asked.get(wish.task)
    return {
        "run": shop.name,
        "round": current.number,
        "kind": wish.family,
        **{name: getattr(wish, name) for name in ("task", "split", "level", "parent", "direction")},
        "stage": at,
        "code": reason.split(":")[0] if reason else None,
        "reason": reason,
        **{name: getattr(measured, name, None) for name in ("attempts", "scored", "succeeded")},
        **{name: getattr(told, name, None) for name in ("prompt_tokens", "sampled_tokens", "cost_usd")},
    }


def show(run_folder: Path) -> None:
    """Print the funnel of a finished curation, and where its task set is."""
    summary = json.loads((run_folder / "funnel.json").read_text())
    console = Console(highlight=False)
    title = f"{summary['run']}: {summary['proposals']} proposals by {summary['proposer']}, {summary['kept']} kept"
    table = Table(title=title, title_justify="left")
    for name in ("round", "stage", "came", "dropped", "left", "reasons"):
        table.add_column(name, justify="left" if name in ("stage", "reasons") else "right")
    for row in funnel.table(summary["funnel"]):
        table.add_row(*row.values())
    console.print(table)
    for name in ("split", "level", "kind"):
        counts = ", ".join(f"{count} {key}" for key, count in sorted(summary[f"kept_by_{name}"].items()))
        console.print(f"Kept by {name}: {counts}", markup=False, soft_wrap=True)
    console.print(f"Task set: {run_folder / KEPT_SET}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    try:
        given = load_curate_config(json.loads(sys.argv[1]))
        show(Path(asyncio.run(curate(given))).parent)
    except OpenForgeError as error:
        sys.exit(f"curate: {error}")
