"""What became of every proposal, and the same as a funnel: how many came to a stage, how many it dropped, and why.

runs/<run>/funnel.parquet     a row a proposal (`FUNNEL`)
runs/<run>/funnel.json        the numbers
"""

import json
from collections import Counter
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from proxy_addons import records
from tasks.report import write_text

STAGES = ("propose", "prune", "build", "test", "probe")
KEPT = "kept"

FUNNEL = pa.schema(
    [
        ("run", pa.string()),
        ("round", pa.int32()),
        *((name, pa.string()) for name in ("task", "kind", "split")),
        ("level", pa.int32()),
        *((name, pa.string()) for name in ("parent", "direction", "stage", "code", "reason")),
        *((name, pa.int32()) for name in ("attempts", "scored", "succeeded")),
        *((name, pa.int64()) for name in ("prompt_tokens", "sampled_tokens")),
        ("cost_usd", pa.float64()),
    ]
)
"""`stage` is the one that dropped the task, by the reason `code`, or `kept`. `attempts`, `scored` and `succeeded` are
the probe's, null where it did not come to that; tokens and cost are the proposer's, null where no model was asked or
the endpoint told none."""

Row = Mapping[str, Any]


def summarise(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One dict a round and stage that any task came to: how many came, how many were dropped, by which codes."""
    found = []
    for round_ in sorted({row["round"] for row in rows}):
        left = [row for row in rows if row["round"] == round_]
        for stage in STAGES:
            dropped = [row for row in left if row["stage"] == stage]
            if stage == "probe" and not any(row["attempts"] is not None for row in left):
                continue
            codes = Counter(row["code"] for row in dropped)
            found.append(
                {
                    "round": round_,
                    "stage": stage,
                    "came": len(left),
                    "dropped": len(dropped),
                    "left": len(left) - len(dropped),
                    "reasons": dict(codes.most_common()),
                }
            )
            left = [row for row in left if row["stage"] != stage]
    return found


def table(summary: Iterable[Row]) -> list[dict[str, str]]:
    """The summary to read, a row a round and stage."""
    return [
        {name: str(row[name]) for name in ("round", "stage", "came", "dropped", "left")}
        | {"reasons": ", ".join(f"{count} {code}" for code, count in row["reasons"].items())}
        for row in summary
    ]


def write(run_folder: Path, rows: Sequence[Row], facts: Row) -> dict[str, Any]:
    """Write both files and return what is in the JSON one: `facts`, the funnel, and how many of what are kept."""
    kept = [row for row in rows if row["stage"] == KEPT]
    summary = {
        **facts,
        "proposals": len(rows),
        KEPT: len(kept),
        "funnel": summarise(rows),
        **{f"kept_by_{name}": dict(Counter(str(row[name]) for row in kept)) for name in ("kind", "split", "level")},
        **{name: _sum(rows, name) for name in ("prompt_tokens", "sampled_tokens", "cost_usd")},
    }
    records.write(str(run_folder / "funnel.parquet"), records.table(rows, FUNNEL))
    write_text(run_folder / "funnel.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return summary


def _sum(rows: Iterable[Row], name: str) -> float | None:
    known = [row[name] for row in rows if row[name] is not None]
    return sum(known) if known else None
