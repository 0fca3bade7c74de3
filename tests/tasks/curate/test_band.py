from typing import Any

import pytest

from tasks.curate.band import Measured
from tasks.curate.band import measured
from tasks.curate.band import spared
from tasks.curate.band import why_dropped


def row(task: str, scored: int, succeeded: int) -> dict[str, Any]:
    return {"task": task, "attempts": 4, "scored": scored, "succeeded": succeeded}


def test_a_tasks_harnesses_are_added_up() -> None:
    found = measured([row("a", 4, 1), row("b", 0, 0), row("a", 3, 0)])
    assert found == {"a": Measured(8, 7, 1), "b": Measured(4, 0, 0)}
    assert found["a"].pass_rate == 1 / 7
    assert found["b"].pass_rate is None


@pytest.mark.parametrize(
    ("succeeded", "low", "high", "reason"),
    [
        (0, 0.0, 1.0, "too_hard: 0 of 4 attempts succeeded"),
        (1, 0.0, 1.0, None),
        (4, 0.0, 1.0, "too_easy: 4 of 4 attempts succeeded"),
        (1, 0.25, 1.0, "too_hard: 1 of 4 attempts succeeded"),
        (3, 0.0, 0.75, "too_easy: 3 of 4 attempts succeeded"),
    ],
)
def test_the_band(succeeded: int, low: float, high: float, reason: str | None) -> None:
    assert why_dropped(Measured(4, 4, succeeded), low, high) == reason


def test_no_verdict_is_no_failure() -> None:
    assert why_dropped(Measured(4, 0, 0), 0.0, 1.0) == "not_measured: none of 4 attempts has a verdict"


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.1, 1), (0.5, 9), (0.25, 3), (0.9, 20)])
def test_the_share_of_the_too_hard_is_of_all_that_stay(share: float, count: int) -> None:
    hard = [f"t{number}" for number in range(20)]
    found = spared(hard, 9, share, seed=1)
    assert len(found) == count
    assert len(found) / (9 + len(found)) <= share or not found
    assert found == spared(list(reversed(hard)), 9, share, seed=1)
