"""Flow `openforge`, deployment `evaluate`: a policy in the real harnesses on a task set, k attempts at each task.

    make evaluate CONFIG='{"model": "tiny", "task_count": 10}'
    prefect deployment run openforge/evaluate -p 'config={"model": "/path/to/hf-folder", "compare": "eval-before"}'

An evaluation is a run like any other: one Prefect task per task of the set, what is recorded is never run again, and
the same name takes it up. docs/evaluation.md says how each number is computed.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import acreate_link_artifact
from prefect.artifacts import acreate_table_artifact
from rich.console import Console
from rich.table import Table

from flows.config import new_run_name
from flows.evaluate_config import EvaluateConfig
from flows.evaluate_config import load_evaluate_config
from flows.train import Session
from flows.train import open_session
from flows.train import run_stage
from proxy_addons.errors import OpenForgeError
from tasks import evaluation
from tasks.stand_in import provided
from tasks.stand_in import script

DEFAULTS = EvaluateConfig()
SCRIPTS = {"perfect": "teacher", "random": "guesser"}


@flow(name="openforge", log_prints=True)
async def evaluate(config: EvaluateConfig = DEFAULTS) -> str:
    """Measure a policy in its harnesses; returns the path of the report.

    Args:
        config: the policy, the tasks, how many attempts. Fields left out come from the profile.
    """
    config = load_evaluate_config(config)
    config = config.model_copy(
        update={"run": config.run or new_run_name(datetime.now(), "eval"), "attempts": config.wanted}
    )
    other = compared_folder(config)
    before = evaluation.read_tasks(other) if other else None
    stand_in = script(SCRIPTS[config.policy]) if config.policy in SCRIPTS else None
    if config.provider:
        stand_in = provided(config.provider)
    async with open_session(config, stand_in) as session:
        groups = evaluation.plan(
            session.name, session.tasks, session.harnesses, config.split, config.task_count, config.wanted
        )
        folder = session.run.path / evaluation.STAGE
        tries = await run_stage(session, folder, groups, evaluation.STAGE, 0)
    return await report(session, tries, before)


def policy_name(config: EvaluateConfig) -> str:
    """The policy in words."""
    if config.provider:
        return config.provider.name
    return f"the model {config.model}" if config.policy == "model" else f"the {config.policy} script"


def compared_folder(config: EvaluateConfig) -> Path | None:
    """The run folder that `compare` names: a run in `runs_dir`, or a path."""
    if config.compare is None:
        return None
    own = Path(config.runs_dir) / config.compare
    return own if own.exists() else Path(config.compare)


async def report(
    session: Session[EvaluateConfig], tries: list[dict[str, Any]], before: list[dict[str, Any]] | None
) -> str:
    """Write tables, summary and page, and their Prefect artifacts."""
    config = session.config
    prices = config.prices.model_dump() if config.prices else None
    attempts = await asyncio.to_thread(
        evaluation.read_attempts, tries, session.tasks, session.run.path / evaluation.STAGE, prices
    )
    tasks = evaluation.by_task(attempts, config.k)
    facts = {
        "run": session.name,
        "policy": policy_name(config),
        "harnesses": config.harnesses,
        "task_set": config.tasks,
        "split": config.split,
        "k": config.k,
        "attempts": config.wanted,
        "compared_with": config.compare,
        "comparison": evaluation.compare(before, tasks) if before else None,
        "config": config.model_dump(mode="json"),
    }
    page = await asyncio.to_thread(evaluation.write, session.run.path, attempts, tasks, facts)
    for name, rows in tables(json.loads((session.run.path / "summary.json").read_text())).items():
        await acreate_table_artifact(rows, key=f"{session.name}-{name}")
    await acreate_link_artifact(page.as_uri(), link_text=f"report of {session.name}", key=f"{session.name}-report")
    print(f"report: {page}")
    return str(page)


def tables(summary: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
    """The tables of a summary by name: `results`, and with a comparison `comparison`."""
    found = {"results": evaluation.table(summary["results"], summary["k"])}
    if summary["comparison"]:
        found["comparison"] = evaluation.comparison_table(summary["comparison"], summary["k"])
    return found


def show(page: Path) -> None:
    """Print the tables of a finished evaluation, and where its page is."""
    summary = json.loads((page.parent / "summary.json").read_text())
    console = Console(highlight=False)
    titles = {
        "results": f"{summary['run']}: {summary['policy']}",
        "comparison": f"minus {summary['compared_with']}, task by task",
    }
    for name, rows in tables(summary).items():
        table = Table(title=titles[name], title_justify="left")
        for column in rows[0]:
            table.add_column(column, justify="left" if column == "measure" else "right")
        for row in rows:
            table.add_row(*row.values())
        console.print(table)
    console.print(f"Report: {page}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    try:
        given = load_evaluate_config(json.loads(sys.argv[1]))
        show(Path(asyncio.run(evaluate(given))))
    except OpenForgeError as error:
        sys.exit(f"evaluate: {error}")
