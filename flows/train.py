"""Flow `openforge`, deployment `train`: epochs of rollouts inside the real harnesses, and weight updates from them.

    prefect deployment run openforge/train -p 'config={"epochs": 2}'

One Prefect task per prompt group and one per update, each with an explicit cache key and a small JSON result. The
files in the run's folder are the truth: `prefect flow-run retry` and a new run of the same name both go on from them.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from typing import Generic

from prefect import Task
from prefect import flow
from prefect import task
from prefect.artifacts import acreate_link_artifact
from prefect.artifacts import acreate_table_artifact
from prefect.logging import get_run_logger

from flows import cluster
from flows import plain_errors
from flows.config import Config
from flows.config import RolloutConfig
from flows.config import RunConfig
from flows.config import load_config
from flows.config import new_run_name
from flows.overlap import overlap
from proxy_addons import records
from proxy_addons.errors import ConfigError
from proxy_addons.live import Limits
from proxy_addons.packing import pack
from tasks import engines
from tasks import harnesses
from tasks import metrics
from tasks.engines import check_engines
from tasks.epoch import Group
from tasks.epoch import check_progress
from tasks.epoch import merge
from tasks.epoch import owed
from tasks.epoch import plan_heldout
from tasks.epoch import plan_training
from tasks.epoch import run_group
from tasks.epoch import stage
from tasks.epoch import staleness
from tasks.epoch import together
from tasks.proxy import proxy_python
from tasks.proxy import running_proxy
from tasks.report import epoch_table
from tasks.report import success
from tasks.report import summarise
from tasks.report import write_rendering
from tasks.report import write_report
from tasks.rewards.rubric import Judge
from tasks.rollout import Arena
from tasks.run import ROOT
from tasks.run import RunFolder
from tasks.run import held
from tasks.run import keep_best
from tasks.run import load_tasks
from tasks.run import model_folder
from tasks.run import open_run
from tasks.sandboxes import choose
from tasks.sandboxes.kubernetes import Kubernetes
from tasks.slots import Slots
from tasks.stand_in import StandIn
from tasks.taskset import Task as LearnTask
from tasks.update import Trainer
from tasks.update import serving
from tasks.update import train
from training.policy_server import PolicyServer
from training.policy_server import running_policy_server

DEFAULTS = RunConfig()
plain_errors.install()


@dataclass(frozen=True)
class Session(Generic[Config]):
    """What one execution of a flow holds open. `policies` is empty where a stand-in answers."""

    config: Config
    name: str
    run: RunFolder
    tasks: Sequence[LearnTask]
    harnesses: Sequence[harnesses.Harness]
    base_model: Path
    policies: Sequence[PolicyServer]
    arena: Arena
    trainer: Trainer


@flow(name="openforge", log_prints=True)
async def openforge(config: RunConfig = DEFAULTS) -> str:
    """Train the model inside its harnesses; returns the path of the report.

    Args:
        config: what to train, on what, for how long. Fields left out come from the profile.
    """
    config = load_config(config)
    reference = config.training.reference_model
    if reference and not (Path(reference) / "config.json").is_file():
        raise ConfigError(f"training.reference_model: {reference} holds no model; name a folder with config.json")
    async with open_session(config) as session, tracking(session) as log:
        if config.evaluate_first:
            await evaluate(session, "before", 0)
        for epoch in range(1, config.epochs + 1):
            if session.run.train_result(epoch) is None:
                if config.mode == "async":
                    await overlapped(session, epoch, log)
                    break
                await publish(session, epoch - 1)
                await collect(session, epoch)
                await update(session, epoch)
            await asyncio.to_thread(pack, str(session.run.epoch(epoch) / "calls"))
            log(epoch)
            last = epoch == config.epochs and config.evaluate_last
            if config.evaluate_every and epoch % config.evaluate_every == 0 and not last:
                await evaluate(session, f"{epoch:03}", epoch)
        if config.evaluate_last:
            await evaluate(session, "after", config.epochs)
    return await report(session)


@contextlib.asynccontextmanager
async def tracking(session: Session[RunConfig]) -> AsyncIterator[Callable[[int], None]]:
    """A function that sends an epoch's numbers to the configured loggers; it does nothing if there are none."""
    with metrics.tracker(session.config.loggers, session.run.path, session.run.config) as send:

        def log(epoch: int) -> None:
            if session.config.loggers:
                send(metrics.numbers(*summarise(session.run.path), epoch), epoch)

        yield log


@contextlib.asynccontextmanager
async def open_session(config: Config, stand_in: StandIn | None = None) -> AsyncIterator[Session[Config]]:
    """Check everything first, then bring up the policy server and the proxy, or attach to a cluster's, for the time of
    the block.

    With `stand_in`, it answers in the place of the policy servers. Nothing that it says can be trained on, so it is not
    measured.
    """
    name = config.run or new_run_name(datetime.now())
    base = model_folder(config.model)
    tasks = load_tasks(config.tasks, config.judge, config.benchmark)
    judge = Judge(config.judge, ROOT / ".openforge" / "judge") if config.judge else None
    if not judge and (judged := [task.id for task in tasks if task.judged]):
        raise ConfigError(f"judge: {len(judged)} tasks, {judged[0]} among them, have a rubric; say who judges them")
    chosen = [harnesses.load(harness) for harness in config.harnesses]
    for each in tasks:
        if each.mcp_servers:
            for harness in chosen:
                harnesses.mcp_able(harness, each.id)
    root = ROOT / harnesses.INSTALL
    on_cluster = config.profile == "kubernetes"
    if on_cluster and stand_in:
        raise ConfigError("policy: a scripted policy is served on one machine only; use profile local")
    if on_cluster:
        sandbox = choose("kubernetes", cluster.settings(config, name, chosen, tasks))
    else:
        for harness in chosen:
            harness.binary(root)
        sandbox = choose(config.sandbox)
    run = open_run(name, config.runs_dir, config.model_dump(mode="json") | {"run": name})
    log = get_run_logger()
    for limit in sandbox.not_enforced():
        log.warning("sandbox %s: %s", sandbox.name, limit)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(held(run))
        for leftover in await asyncio.to_thread(sandbox.reap, f"{name}-e"):
            log.warning("ended %s, left running by an execution of this run that died", leftover)
        trainer = Trainer(run.path / "logs" / "train.log")
        stack.callback(trainer.stop)
        with stage(run.path, "serve", 0):
            policies, proxy = await stack.enter_async_context(
                cluster.attached(config, name, base) if on_cluster else _serving(config, base, run, stand_in, trainer)
            )
            if not stand_in:
                await check_engines(proxy, run.path, config.temperature, config.max_model_len)
            versions = None
            if isinstance(sandbox, Kubernetes):
                await stack.enter_async_context(sandbox)
                versions = await cluster.versions(sandbox, config, name, chosen)
        write_rendering(run.path, await proxy.rendering())
        arena = Arena(
            proxy=proxy,
            sandbox=sandbox,
            harness_root=root,
            folder=run.path,
            scratch=ROOT / ".openforge" / "scratch" / name,
            limits=Limits(
                max_calls=config.max_turns,
                max_tokens=config.max_tokens,
                max_model_len=config.max_model_len,
                temperature=config.temperature,
                max_total_tokens=config.max_total_tokens,
                max_concurrent=config.max_concurrent_calls,
            ),
            memory_mb=config.limits.memory_mb,
            cpus=config.limits.cpus,
            pids=config.limits.pids,
            timeout_s=config.rollout_timeout_s,
            tries=config.retries,
            slots=Slots(config.concurrency),
            judge=judge,
            versions=versions,
            continue_cut=config.continue_cut,
        )
        yield Session(config, name, run, tasks, chosen, base, policies, arena, trainer)


@contextlib.asynccontextmanager
async def _serving(
    config: RolloutConfig, base: Path, run: RunFolder, stand_in: StandIn | None, trainer: Trainer
) -> AsyncIterator[cluster.Serving]:
    """Policy servers, or what stands in for them, and a proxy on this machine, for the time of the block."""
    logs = run.path / "logs"
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(config, RunConfig) and config.engine == "hybrid":
            given = run, base, config.epochs, config.seed, train_settings(config), trainer
            policies = await stack.enter_async_context(serving(*given))
        else:
            numbers = range(0 if stand_in else config.engine_replicas)
            policies = [
                await stack.enter_async_context(running_policy_server(config.engine, base, log, config.max_model_len))
                for log in (logs / f"policy-{number}.log" for number in numbers)
            ]
        urls = [policy.url for policy in policies]
        if stand_in:
            urls.append(await stack.enter_async_context(stand_in(base, logs / "policy-0.log")))
        yield (
            policies,
            await stack.enter_async_context(running_proxy(proxy_python(ROOT), urls, base, logs / "proxy.log")),
        )


def train_settings(config: RunConfig) -> dict[str, Any]:
    """What a training process is told of the run."""
    served = {"served_len": config.max_model_len, "served_gpus": config.engine_gpus}
    return config.training.model_dump() | (served if config.engine == "hybrid" else {})


async def overlapped(session: Session[RunConfig], first: int, log: Callable[[int], None]) -> None:
    """The epochs from `first` on, which is the next to train, in mode `async`; each is told to `log` when done."""

    def version(epoch: int) -> int:
        return session.run.weights(epoch, session.base_model)[1]

    async def learn(epoch: int) -> dict[str, Any]:
        await update(session, epoch)
        await publish(session, epoch)
        await asyncio.to_thread(pack, str(session.run.epoch(epoch) / "calls"))
        log(epoch)
        rollouts = str(session.run.epoch(epoch) / "rollouts.parquet")
        rows = records.read(rollouts, records.ROLLOUTS, ["reward", "weight_version"])
        return {"staleness": staleness(rows, version(epoch - 1))}

    await publish(session, first - 1)
    await overlap(
        range(first, session.config.epochs + 1),
        session.config.training.max_staleness,
        version,
        lambda epoch: collect(session, epoch),
        learn,
        session.run.path,
        session.arena.slots,
    )


async def collect(session: Session[RunConfig], epoch: int) -> None:
    """The training rollouts of an epoch, with the weights that are served."""
    config = session.config
    groups = plan_training(
        session.name, epoch, config.seed, session.tasks, session.harnesses, config.tasks_per_epoch, config.group_size
    )
    await run_stage(session, session.run.epoch(epoch), groups, "rollout", epoch, config.group_deadline_s)


async def evaluate(session: Session[RunConfig], when: str, epoch: int) -> None:
    """The held-out rollouts, with the weights after `epoch` epochs."""
    config = session.config
    kind = f"heldout_{when}"
    groups = plan_heldout(
        session.name,
        epoch,
        kind,
        session.tasks,
        session.harnesses,
        config.heldout_tasks,
        config.heldout_samples,
    )
    folder = session.run.path / f"eval-{when}"
    tries = session.arena.tries
    if await asyncio.to_thread(lambda: any(owed(folder, group, tries) for group in groups)):
        await publish(session, epoch)
    rows = await run_stage(session, folder, groups, f"evaluate_{when}", epoch)
    await asyncio.to_thread(keep_best, session.run, epoch, success(rows))


async def run_stage(
    session: Session[Any], folder: Path, groups: list[Group], name: str, epoch: int, deadline_s: float | None = None
) -> list[dict[str, Any]]:
    """Run what a stage owes, one Prefect task per group, and gather its rows: those of all tries (`epoch.merge`)."""
    arena = replace(session.arena, folder=folder)
    with stage(session.run.path, name, epoch) as facts:
        step = _group_step(groups, arena, deadline_s)
        runs = []
        for group in groups:
            todo = len(await asyncio.to_thread(owed, folder, group, arena.tries))
            facts["resumed"] = facts.get("resumed", 0) + len(group) - todo
            facts["owed"] = facts.get("owed", 0) + todo
            # A cached result stands only while the files it speaks of are whole.
            runs.append(
                step.with_options(refresh_cache=todo > 0, task_run_name=group[0].group)(
                    session.name, folder.name, group[0].group
                )
            )
        print(f"{name}: {facts['owed']} rollouts to run, {facts['resumed']} already recorded")
        await together(runs)
        rows = await asyncio.to_thread(merge, folder, groups, arena.tries)
    check_progress(rows, name)
    scored = [row["reward"] for row in rows if row["reward"] is not None]
    mean = f"{sum(scored) / len(scored):.3f}" if scored else "–"
    print(f"{name}: {len(rows)} tries recorded, {len(scored)} scored, mean reward {mean}")
    return rows


def _group_step(groups: list[Group], arena: Arena, deadline_s: float | None) -> Task[[str, str, str], Any]:
    """The Prefect task that fills one group of a stage."""
    by_name = {group[0].group: group for group in groups}

    @task(
        name="rollout group",
        persist_result=True,
        result_serializer="json",
        cache_key_fn=lambda _, given: f"{given['run']}/{given['place']}/{given['group']}",
    )
    async def rollout_group(run: str, place: str, group: str) -> dict[str, Any]:
        return await run_group(by_name[group], arena, deadline_s)

    return rollout_group


async def update(session: Session[RunConfig], epoch: int) -> None:
    """One veRL update from an epoch's rollouts, in a process of its own."""
    config = session.config

    @task(
        name="train epoch",
        task_run_name=f"train epoch {epoch}",
        persist_result=True,
        result_serializer="json",
        cache_key_fn=lambda _, given: f"{given['run']}/epoch-{given['epoch']:03}/train",
        refresh_cache=True,
    )
    async def train_epoch(run: str, epoch: int) -> dict[str, Any]:
        settings = train_settings(config)
        return await train(session.run, session.base_model, epoch, config.seed, settings, session.trainer)

    with stage(session.run.path, "train", epoch):
        result = await train_epoch(session.name, epoch)
    print(f"train epoch {epoch}: {json.dumps(result)}")


async def publish(session: Session[Any], version: int) -> None:
    """Serve the weights after `version` epochs."""
    folder, version = session.run.weights(version, session.base_model)
    if all(policy.version == version for policy in session.policies):
        return
    with stage(session.run.path, "publish", version):
        left_out = await engines.publish(session.arena.proxy, session.policies, folder, version)
    for url, reason in left_out.items():
        print(f"publish: leaving out {url}: {reason}")


async def report(session: Session[Any]) -> str:
    """Write report and summary, and their Prefect artifacts."""
    summary, epochs = await asyncio.to_thread(summarise, session.run.path)
    page = await asyncio.to_thread(write_report, session.run.path, summary, epochs)
    await acreate_table_artifact(epoch_table(epochs), key=f"{session.name}-epochs")
    await acreate_link_artifact(page.as_uri(), link_text=f"report of {session.name}", key=f"{session.name}-report")
    print(f"report: {page}")
    return str(page)


if __name__ == "__main__":
    openforge.serve(name="train")
