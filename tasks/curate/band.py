"""Which tasks a policy can learn from: those that it solves in some of its attempts.

A group of attempts that all succeed, or all fail, has no advantage to learn from. Of the latter a share may stay, for
the policy that this one is to become.
"""

import math
import random
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measured:
    """A task's attempts in all harnesses: how many there were, how many have a verdict, how many succeeded."""

    attempts: int
    scored: int
    succeeded: int

    @property
    def pass_rate(self) -> float | None:
        """Of those with a verdict; None if none has one."""
        return self.succeeded / self.scored if self.scored else None


def measured(rows: Iterable[Mapping[str, Any]]) -> dict[str, Measured]:
    """Task id → what an evaluation came to (rows as in `tasks.evaluation.TASKS`)."""
    found: dict[str, Measured] = {}
    for row in rows:
        before = found.get(row["task"], Measured(0, 0, 0))
        found[row["task"]] = Measured(
            before.attempts + row["attempts"], before.scored + row["scored"], before.succeeded + row["succeeded"]
        )
    return found


def why_dropped(found: Measured, low: float, high: float) -> str | None:
    """Why a task is outside the band of pass rates above `low` and below `high`, both in 0 … 1; None if it is inside.

    `too_hard` is decided for good only when all is known: see `spared`.
    """
    rate = found.pass_rate
    if rate is None:
        return f"not_measured: none of {found.attempts} attempts has a verdict"
    said = f"{found.succeeded} of {found.scored} attempts succeeded"
    if rate >= high:
        return f"too_easy: {said}"
    return f"too_hard: {said}" if rate <= low else None


def spared(hard: Sequence[str], inside: int, share: float, seed: int) -> set[str]:
    """Which of the too hard tasks stay beside `inside` others, so that they are at most `share` of all that stay."""
    count = min(len(hard), math.floor(share * inside / (1 - share) + 1e-9))
    return set(random.Random(seed).sample(sorted(hard), count))
