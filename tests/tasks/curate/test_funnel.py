"""The funnel of rows whose numbers are plain."""

import json
from pathlib import Path
from typing import Any

from proxy_addons import records
from tasks.curate import funnel


def row(task: str, stage: str, code: str | None = None, round_: int = 0, **given: Any) -> dict[str, Any]:
    kind = {"kind": "logs", "split": "train", "level": 1}
    return (
        dict.fromkeys(funnel.FUNNEL.names)
        | kind
        | {
            "run": "r",
            "round": round_,
            "task": task,
            "stage": stage,
            "code": code,
            "reason": code and f"{code}: so it is",
            **given,
        }
    )


ROWS = [
    row("a", "propose", "unreadable", prompt_tokens=100, sampled_tokens=5),
    row("b", "prune", "too_long", prompt_tokens=50, sampled_tokens=5),
    row("c", "prune", "near_duplicate"),
    row("d", "prune", "near_duplicate"),
    row("e", "test", "flaky"),
    row("f", "probe", "too_easy", attempts=4, scored=4, succeeded=4),
    row("g", "kept", attempts=4, scored=4, succeeded=1),
    row("f-r1", "kept", round_=1, parent="f"),
]


def test_each_stage_gets_what_the_one_before_left() -> None:
    found = funnel.summarise(ROWS)
    assert [(s["round"], s["stage"], s["came"], s["dropped"], s["left"]) for s in found] == [
        (0, "propose", 7, 1, 6),
        (0, "prune", 6, 3, 3),
        (0, "build", 3, 0, 3),
        (0, "test", 3, 1, 2),
        (0, "probe", 2, 1, 1),
        (1, "propose", 1, 0, 1),
        (1, "prune", 1, 0, 1),
        (1, "build", 1, 0, 1),
        (1, "test", 1, 0, 1),
    ]
    assert found[1]["reasons"] == {"near_duplicate": 2, "too_long": 1}
    assert funnel.table(found)[1] == {
        "round": "0",
        "stage": "prune",
        "came": "6",
        "dropped": "3",
        "left": "3",
        "reasons": "2 near_duplicate, 1 too_long",
    }


def test_what_is_written_is_what_is_returned_and_unknown_stays_unknown(tmp_path: Path) -> None:
    summary = funnel.write(tmp_path, ROWS, {"run": "r"})
    assert json.loads((tmp_path / "funnel.json").read_text()) == summary
    assert records.read(str(tmp_path / "funnel.parquet"), funnel.FUNNEL) == ROWS
    assert (summary["proposals"], summary["kept"], summary["kept_by_kind"]) == (8, 2, {"logs": 2})
    assert (summary["prompt_tokens"], summary["sampled_tokens"], summary["cost_usd"]) == (150, 10, None)
