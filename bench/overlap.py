"""`make bench-overlap`: the wall clock of mode `async` over `sync`. Numbers go to bench/out/overlap.json.

The flow, Prefect, the scheduler, the proxy with its pause for new weights, and the records are the real ones. Scripts
stand in for harness, engine and update (`bench/scripted_run.py`): rollouts take log-normal times, the same
ones in every mode, and an update takes exactly as long as an epoch's rollouts would if no place were ever free: the two
halves are equal work. Full overlap of equal halves gives 0.5 at best, and the first epoch's rollouts and the last one's
update have nothing beside them; what goes below comes from the stragglers, which in `sync` hold up all.

    python -m bench.overlap --epochs 8 --median 1.0
"""

import argparse
import asyncio
import json
import math
import os
import platform
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from prefect.testing.utilities import prefect_test_harness
from rich.console import Console
from rich.table import Table

from bench.scripted_run import Update
from bench.scripted_run import run
from bench.scripted_run import write_task
from proxy_addons import records
from tasks.run import ROOT

OUT = ROOT / "bench" / "out"
TASKS, SIZE, SLOTS = 8, 4, 8
SIGMA, LONGEST = 1.0, 15.0
"""Of the log-normal times: spread, and the longest as a multiple of the median (a rollout's time limit)."""
GOAL = 0.5
MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "async": {"mode": "async"},
    "async, 2 versions": {"mode": "async", "training": {"max_staleness": 2}},
}


def write_tasks(folder: Path, epochs: int, median: float) -> float:
    """A task set of `epochs` * TASKS tasks; returns the seconds that an epoch's rollouts take without a free place."""
    rng = random.Random(0)
    total = 0.0
    for number in range(epochs * TASKS):
        seconds = [min(rng.lognormvariate(math.log(median), SIGMA), LONGEST * median) for _ in range(SIZE)]
        write_task(folder, f"task-{number}", seconds, [sample % 2 == 0 for sample in range(SIZE)])
        total += sum(seconds)
    return total / SLOTS / epochs


def measure(name: str, config: dict[str, Any], update: Update) -> dict[str, Any]:
    """One run, and what it came to."""
    folder = asyncio.run(run({**config, **MODES[name], "run": name.replace(",", "").replace(" ", "-")}, update))
    epochs = range(1, config["epochs"] + 1)
    rows = {n: records.read(str(folder / f"epoch-{n:03}" / "rollouts.parquet"), records.ROLLOUTS) for n in epochs}
    updates = [json.loads((folder / f"epoch-{n:03}" / "train.json").read_text()) for n in epochs]
    everything = [row for each in rows.values() for row in each]
    begun = min(row["started_at"].timestamp() for row in everything)
    wall_s = updates[-1]["time"][1] - begun
    behind: Counter[str] = Counter()
    for each in updates:
        behind.update(each["behind"])
    used_s = sum((row["ended_at"] - row["started_at"]).total_seconds() for row in everything)
    return {
        "mode": name,
        "wall_s": round(wall_s, 1),
        "rollouts": len(everything),
        "rollouts_twice": len(everything) - len({(row["epoch"], row["task"], row["sample"]) for row in everything}),
        "groups_lost": len(epochs) * TASKS - len({row["group"] for row in everything if row["reward"] is not None}),
        "rows_refused": sum(sum(each["refused"].values()) for each in updates),
        "rows_by_versions_behind": dict(sorted(behind.items())),
        "update_waits": round(1 - len(epochs) * update.train_s / wall_s, 3),
        "places_idle": round(1 - used_s / (SLOTS * wall_s), 3),
    }


def show(rows: list[dict[str, Any]]) -> None:
    """A table on the terminal."""
    table = Table("", *(row["mode"] for row in rows))
    for name in (key for key in rows[0] if key != "mode"):
        table.add_row(name, *(str(row[name]) for row in rows))
    Console().print(table)


def main() -> None:
    """Run every mode, print, and write bench/out/overlap.json."""
    parser = argparse.ArgumentParser(prog="python -m bench.overlap")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--median", type=float, default=1.0, help="seconds of a rollout")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="openforge-bench-") as temporary, prefect_test_harness(120):
        folder = Path(temporary)
        train_s = write_tasks(folder / "tasks", options.epochs, options.median)
        config = {
            "epochs": options.epochs,
            "tasks_per_epoch": TASKS,
            "group_size": SIZE,
            "concurrency": SLOTS,
            "tasks": str(folder / "tasks"),
            "runs_dir": str(folder / "runs"),
        }
        rows = []
        for name in MODES:
            rows.append(measure(name, config, Update(train_s)))
            print(f"{name}: {rows[-1]['wall_s']} s", flush=True)
    for row in rows:
        row["over_sync"] = round(row["wall_s"] / rows[0]["wall_s"], 3)
    show(rows)
    found = {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()},
        "stand_ins": "harness, engine and update are scripts; flow, Prefect, scheduler, proxy and records are real",
        "epochs": options.epochs,
        "places": SLOTS,
        "rollouts_per_epoch": TASKS * SIZE,
        "rollout_s": {"median": options.median, "sigma": SIGMA, "longest": LONGEST * options.median},
        "train_s": round(train_s, 2),
        "rollouts_s_without_a_free_place": round(train_s, 2),
        "least_possible_over_two_halves": round((options.epochs + 1) / (2 * options.epochs), 3),
        "goal_over_sync": GOAL,
        "runs": rows,
    }
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "overlap.json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"async takes {rows[1]['over_sync']} of sync's time (goal {GOAL}); {OUT / 'overlap.json'}")


if __name__ == "__main__":
    main()
