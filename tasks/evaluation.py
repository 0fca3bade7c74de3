"""What an evaluation came to: a row per attempt, a row per task and harness, a summary, a page.

runs/<run>/evaluation/          the rollouts, as in any stage
runs/<run>/attempts.parquet     one row per attempt (`ATTEMPTS`)
runs/<run>/tasks.parquet        one row per task and harness (`TASKS`)
runs/<run>/summary.json, report.html

An attempt without a verdict (our failure, the harness's or the verifier's) is no failure of the policy: it is left out
and counted. A task with fewer scored attempts than k does not enter pass@k and pass^k, and is counted too.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from proxy_addons import records
from proxy_addons.errors import ConfigError
from proxy_addons.identity import Rollout
from proxy_addons.packing import has_calls
from proxy_addons.packing import read_calls
from tasks import behaviour
from tasks.behaviour import UNKNOWN
from tasks.behaviour import Axes
from tasks.behaviour import Trace
from tasks.epoch import Group
from tasks.harnesses import Harness
from tasks.passk import Estimate
from tasks.passk import estimate
from tasks.passk import paired
from tasks.passk import pass_at_k
from tasks.passk import pass_hat_k
from tasks.report import SUCCESS
from tasks.report import duration
from tasks.report import is_scored
from tasks.report import last_tries
from tasks.report import number
from tasks.report import percent
from tasks.report import render
from tasks.report import write_text
from tasks.rollout import Slot
from tasks.statistics import mean
from tasks.statistics import rate
from tasks.taskset import Task

Row = Mapping[str, Any]

STAGE = "evaluation"
AXES = tuple(field.name for field in fields(Axes))
ALL = "all"
_NUMBERS = pa.float64()

ATTEMPTS = pa.schema(
    [
        *((name, pa.string()) for name in ("run", "task", "digest", "task_kind", "harness", "rollout")),
        ("attempt", pa.int32()),
        ("scored", pa.bool_()),
        ("success", pa.bool_()),
        ("reward", _NUMBERS),
        *((name, pa.string()) for name in ("exit", "reason", "error_class")),
        *((name, pa.int64()) for name in ("turns", "tool_calls", "prompt_tokens", "sampled_tokens")),
        ("wall_s", _NUMBERS),
        ("cost_usd", _NUMBERS),
        *((name, _NUMBERS) for name in AXES),
    ]
)
"""`success` and `reward` are null where `scored` is false; then `error_class` and `reason` say why. `turns`,
`tool_calls` and the axes are null where the recording has a hole or there is no verdict. `wall_s` is from the harness's
start to its end, in seconds; `cost_usd` is null without prices."""

TASKS = pa.schema(
    [
        *((name, pa.string()) for name in ("run", "task", "digest", "task_kind", "harness")),
        *((name, pa.int32()) for name in ("attempts", "scored", "succeeded", "k")),
        *((name, _NUMBERS) for name in ("pass_at_1", "pass_at_k", "pass_hat_k")),
    ]
)
"""`pass_at_k` and `pass_hat_k` are null if fewer than `k` attempts were scored, `pass_at_1` if none was."""


def plan(
    run: str,
    tasks: Sequence[Task],
    harnesses: Sequence[Harness],
    split: str,
    count: int | None,
    attempts: int,
    kind: str = STAGE,
) -> list[Group]:
    """`count` tasks of `split` (or of all splits), the same ones every time, `attempts` of each in each harness.

    Held-out tasks are drawn as `epoch.plan_heldout` draws them, so that a run's own numbers are of the same tasks.
    Raises ConfigError if the set has fewer.
    """
    found = [task for task in tasks if split in (task.split, ALL)]
    count = len(found) if count is None else count
    if not found or len(found) < count:
        raise ConfigError(
            f"task_count: {count or 'some'} asked for, the set has {len(found)} of split {split!r}; ask for fewer, or "
            "set split"
        )
    size = attempts * len(harnesses)
    return [
        [Slot(Rollout(run, 0, task.id, s), task, harnesses[s % len(harnesses)], kind) for s in range(size)]
        for task in random.Random("heldout").sample(found, count)
    ]


def read_attempts(tries: Iterable[Row], tasks: Iterable[Task], folder: Path, prices: Row | None) -> Sequence[Row]:
    """One row per attempt, as `ATTEMPTS` has it; of its tries the last counts. `prices` are USD per million tokens,
    `prompt` and `sampled`."""
    by_id = {task.id: task for task in tasks}
    rows: list[dict[str, Any]] = []
    for (task, harness), found in _cells(last_tries(tries)).items():
        traces = {row["rollout"]: trace for row in found if (trace := _trace(row, folder, by_id[task]))}
        measured = dict(zip(traces, behaviour.axes(list(traces.values())), strict=True))
        for attempt, row in enumerate(found):
            scored, trace = is_scored(row), traces.get(row["rollout"])
            rows.append(
                {name: row[name] for name in ("run", "rollout", "exit", "reason", "error_class")}
                | {name: row[name] for name in ("prompt_tokens", "sampled_tokens")}
                | {
                    "task": task,
                    "digest": by_id[task].digest,
                    "task_kind": by_id[task].kind,
                    "harness": harness,
                    "attempt": attempt,
                    "scored": scored,
                    "success": row["reward"] >= SUCCESS if scored else None,
                    "reward": row["reward"] if scored else None,
                    "turns": trace.turns if trace else None,
                    "tool_calls": len(trace.actions) if trace else None,
                    "wall_s": json.loads(row["timings"]).get("rollout"),
                    "cost_usd": _cost(row, prices),
                }
                | asdict(measured.get(row["rollout"], UNKNOWN))
            )
    return rows


def _trace(row: Row, folder: Path, task: Task) -> Trace | None:
    path = str(folder / "calls" / f"{row['rollout']}.parquet")
    if not (is_scored(row) and row["complete"] and has_calls(path)):
        return None
    return behaviour.read_trace(read_calls(path, behaviour.COLUMNS), row["reward"] >= SUCCESS, task.misleading)


def _cost(row: Row, prices: Row | None) -> float | None:
    if prices is None or row["prompt_tokens"] is None:
        return None
    return (row["prompt_tokens"] * prices["prompt"] + row["sampled_tokens"] * prices["sampled"]) / 1e6


def by_task(attempts: Iterable[Row], k: int) -> Sequence[Row]:
    """One row per task and harness, as `TASKS` has it."""
    rows = []
    for found in _cells(attempts).values():
        n, c = sum(row["scored"] for row in found), sum(row["success"] is True for row in found)
        rows.append(
            {name: found[0][name] for name in ("run", "task", "digest", "task_kind", "harness")}
            | {"attempts": len(found), "scored": n, "succeeded": c, "k": k}
            | {
                "pass_at_1": pass_at_k(n, c, 1) if n else None,
                "pass_at_k": pass_at_k(n, c, k) if n >= k else None,
                "pass_hat_k": pass_hat_k(n, c, k) if n >= k else None,
            }
        )
    return rows


def _cells(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    cells: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        cells.setdefault((row["task"], row["harness"]), []).append(row)
    return cells


def summarise(attempts: Sequence[Row], tasks: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """The numbers per harness, and of all harnesses together under `ALL`."""
    names = sorted({row["harness"] for row in attempts})
    return {
        name: _summary(
            [row for row in attempts if name in (row["harness"], ALL)],
            [row for row in tasks if name in (row["harness"], ALL)],
        )
        for name in [*names, ALL]
    }


def _summary(attempts: Sequence[Row], tasks: Sequence[Row]) -> dict[str, Any]:
    scored = [row for row in attempts if row["scored"]]
    return {
        **{name: _asdict(estimate(_known(tasks, name))) for name in ("pass_at_1", "pass_at_k", "pass_hat_k")},
        "succeeded": asdict(rate(row["success"] for row in scored)),
        "tasks": len({row["task"] for row in tasks}),
        "tasks_below_k": sum(row["pass_at_k"] is None for row in tasks),
        "attempts": len(attempts),
        "unscored": dict(Counter(row["error_class"] or "no verdict" for row in attempts if not row["scored"])),
        **{name: _sum(attempts, name) for name in ("prompt_tokens", "sampled_tokens", "cost_usd")},
        **{name: mean(value for _, value in _known(scored, name)) for name in ("turns", "wall_s")},
        "axes": {name: _axis(attempts, name) for name in AXES},
    }


def _axis(attempts: Iterable[Row], name: str) -> dict[str, Any]:
    found = [value for _, value in _known(attempts, name)]
    return {"mean": mean(found), "attempts": len(found)}


def _known(rows: Iterable[Row], name: str) -> list[tuple[str, float]]:
    return [(row["task"], row[name]) for row in rows if row[name] is not None]


def _sum(rows: Iterable[Row], name: str) -> float | None:
    found = [row[name] for row in rows if row[name] is not None]
    return sum(found) if found else None


def _asdict(found: Estimate | None) -> dict[str, Any] | None:
    return asdict(found) if found else None


def compare(first: Sequence[Row], second: Sequence[Row]) -> dict[str, Any]:
    """Second minus first, per harness and for `ALL`, over the tasks that both measured.

    A task is the same if its files are (`digest`). What only one side has measured is left out and counted.
    """
    other = {(row["task"], row["digest"], row["harness"]): row for row in first}
    pairs = [(other.get((row["task"], row["digest"], row["harness"])), row) for row in second]
    both = [(a, b) for a, b in pairs if a is not None]
    names = sorted({row["harness"] for _, row in both})
    result: dict[str, Any] = {"left_out": len(first) + len(second) - 2 * len(both)}
    for name in [*names, ALL]:
        of = [(a, b) for a, b in both if name in (b["harness"], ALL)]
        result[name] = {measure: _difference(of, measure) for measure in ("pass_at_1", "pass_at_k", "pass_hat_k")}
    return result


def _difference(pairs: Iterable[tuple[Row, Row]], measure: str) -> dict[str, Any] | None:
    """None if nothing can be compared: no task with both values, or another k."""
    known = [
        (a, b)
        for a, b in pairs
        if a[measure] is not None and b[measure] is not None and (measure == "pass_at_1" or a["k"] == b["k"])
    ]
    sides = [[(pair[side]["task"], pair[side][measure]) for pair in known] for side in (0, 1)]
    found = paired(*sides)
    return {"difference": asdict(found[0]), "sign": asdict(found[1])} if found else None


def read_tasks(run_folder: Path) -> list[dict[str, Any]]:
    """The `TASKS` rows of an evaluation. Raises ConfigError if the folder holds none."""
    path = str(run_folder / "tasks.parquet")
    if not records.is_whole(path):
        raise ConfigError(f"compare: {run_folder} holds no finished evaluation (tasks.parquet); name its run or folder")
    return records.read(path, TASKS)


def table(summary: Mapping[str, Any], k: int) -> list[dict[str, str]]:
    """The summary to read, a row per measure and a column per harness."""
    texts = {name: _texts(numbers, k) for name, numbers in summary.items()}
    return [{"measure": measure} | {name: column[measure] for name, column in texts.items()} for measure in texts[ALL]]


def _texts(numbers: Row, k: int) -> dict[str, str]:
    unscored = "; ".join(f"{count} {why}" for why, count in numbers["unscored"].items())
    return {
        "pass@1": interval(numbers["pass_at_1"]),
        f"pass@{k}": interval(numbers["pass_at_k"]),
        f"pass^{k}": interval(numbers["pass_hat_k"]),
        "attempts that succeeded": percent(numbers["succeeded"]),
        "tasks": number(numbers["tasks"]),
        f"tasks, each harness, with under {k} scored": number(numbers["tasks_below_k"]),
        "attempts unscored": unscored or "0",
        "prompt tokens": number(numbers["prompt_tokens"]),
        "sampled tokens": number(numbers["sampled_tokens"]),
        "turns per attempt": number(numbers["turns"]),
        "time per attempt": duration(numbers["wall_s"]),
        "cost, USD": number(numbers["cost_usd"]),
        **{name.replace("_", " "): _axis_text(axis) for name, axis in numbers["axes"].items()},
    }


def interval(found: Row | None) -> str:
    """An estimate to read."""
    return f"{found['value']:.1%} [{found['lo']:.1%}, {found['hi']:.1%}]" if found else "–"


def _axis_text(axis: Row) -> str:
    return "–" if axis["mean"] is None else f"{axis['mean']:.2f} (of {axis['attempts']})"


def comparison_table(compared: Mapping[str, Any], k: int) -> list[dict[str, str]]:
    """The comparison to read, a row per measure and harness."""
    names = {"pass_at_1": "pass@1", "pass_at_k": f"pass@{k}", "pass_hat_k": f"pass^{k}"}
    return [
        {"measure": names[measure], "harness": harness} | _difference_text(found)
        for harness, measures in compared.items()
        if harness != "left_out"
        for measure, found in measures.items()
    ]


def _difference_text(found: Row | None) -> dict[str, str]:
    if found is None:
        return dict.fromkeys(("difference, points", "tasks", "better / worse / equal", "sign test p"), "–")
    d, sign = found["difference"], found["sign"]
    return {
        "difference, points": f"{100 * d['value']:+.1f} [{100 * d['lo']:+.1f}, {100 * d['hi']:+.1f}]",
        "tasks": str(d["tasks"]),
        "better / worse / equal": f"{sign['better']} / {sign['worse']} / {sign['equal']}",
        "sign test p": f"{sign['p']:.3g}",
    }


def write(run_folder: Path, attempts: Sequence[Row], tasks: Sequence[Row], facts: Mapping[str, Any]) -> Path:
    """Write both tables, `summary.json` and the page; returns the page's path. `facts` is what the summary says besides
    the numbers: `run`, `policy`, `harnesses`, `k`, and with a comparison `compared_with` and `comparison`."""
    summary = {**facts, "results": summarise(attempts, tasks)}
    k = facts["k"]
    records.write(str(run_folder / "attempts.parquet"), records.table(attempts, ATTEMPTS))
    write_text(run_folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    page = render(
        "evaluation.html.j2",
        summary=summary,
        table=table(summary["results"], k),
        comparison=comparison_table(facts["comparison"], k) if facts.get("comparison") else [],
        tasks=tasks,
        unscored=[row for row in attempts if not row["scored"]],
    )
    write_text(run_folder / "report.html", page)
    # Last: what compares with this evaluation takes this file for its end.
    records.write(str(run_folder / "tasks.parquet"), records.table(tasks, TASKS))
    return run_folder / "report.html"
