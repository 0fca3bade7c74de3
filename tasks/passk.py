"""pass@k and pass^k, their intervals over tasks, and the paired comparison of two policies.

A task is what is drawn at random; its attempts, and the same task in several harnesses, belong together. So intervals
come from a bootstrap that draws whole tasks. No data is None, never 0.
"""

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from tasks.statistics import wilson

RESAMPLES = 10_000

Value = tuple[str, float]
"""A task's name and what was measured there; a task may occur several times (once per harness)."""


@dataclass(frozen=True)
class Estimate:
    """The mean of a measure over `cells` values of `tasks` tasks with its 95 % interval."""

    value: float
    lo: float
    hi: float
    cells: int
    tasks: int


@dataclass(frozen=True)
class Sign:
    """On how many tasks the second policy was better, worse and equal, and how likely a split as uneven is by chance
    (exact, two-sided, ties left out)."""

    better: int
    worse: int
    equal: int
    p: float


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that of `k` attempts, drawn from `n` of which `c` succeeded, at least one did.

    1 - C(n-c, k) / C(n, k): Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1. Raises
    ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    _check(n, c, k)
    return (comb(n, k) - comb(n - c, k)) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Probability that all of `k` attempts, drawn from `n` of which `c` succeeded, did: C(c, k) / C(n, k).

    Yao et al. 2024, "tau-bench", section 3. Raises ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    _check(n, c, k)
    return comb(c, k) / comb(n, k)


def _check(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"{c} successes of {n} attempts, {k} at a time, is impossible")


def estimate(values: Iterable[Value], low: float = 0.0, high: float = 1.0, seed: int = 0) -> Estimate | None:
    """The mean of values that lie in `low` to `high`, with the percentile bootstrap interval over tasks; None of none.

    Where every task has the same mean, resampling cannot vary. Then the interval is Wilson's with one observation per
    task, the values mapped to 0 to 1; it is at least as wide as it should be, as no values in 0 to 1 vary more than
    zeros and ones.
    """
    by_task: dict[str, list[float]] = {}
    for task, value in values:
        by_task.setdefault(task, []).append(value)
    if not by_task:
        return None
    sums = np.array([sum(found) for found in by_task.values()])
    counts = np.array([len(found) for found in by_task.values()])
    mean, tasks = float(sums.sum() / counts.sum()), len(by_task)
    if np.all(np.isclose(sums / counts, mean)):
        ends = wilson((mean - low) / (high - low) * tasks, tasks)
        lo, hi = (low + (high - low) * end for end in ends)
    else:
        lo, hi = np.percentile(_resampled(sums, counts, seed), [2.5, 97.5])
    return Estimate(mean, float(lo), float(hi), int(counts.sum()), tasks)


def _resampled(sums: np.ndarray, counts: np.ndarray, seed: int) -> np.ndarray:
    """The mean of each resample of the tasks; as many at a time as fit in a few MB."""
    rng = np.random.default_rng(seed)
    tasks, means = len(sums), np.empty(RESAMPLES)
    at_a_time = max(1, 1_000_000 // tasks)
    for start in range(0, RESAMPLES, at_a_time):
        drawn = rng.integers(tasks, size=(min(at_a_time, RESAMPLES - start), tasks))
        means[start : start + len(drawn)] = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    return means


def paired(first: Sequence[Value], second: Sequence[Value]) -> tuple[Estimate, Sign] | None:
    """Second minus first on the same tasks, value by value, or None of none. Raises ValueError if the tasks differ."""
    if [task for task, _ in first] != [task for task, _ in second]:
        raise ValueError("not the same tasks in the same order")
    differences = [(task, after - before) for (task, before), (_, after) in zip(first, second, strict=True)]
    found = estimate(differences, low=-1.0)
    return (found, sign_test(differences)) if found else None


def sign_test(differences: Iterable[Value]) -> Sign:
    """The exact sign test over tasks; a task's values are added up first."""
    by_task: dict[str, float] = {}
    for task, value in differences:
        by_task[task] = by_task.get(task, 0.0) + value
    better = sum(value > 1e-12 for value in by_task.values())
    worse = sum(value < -1e-12 for value in by_task.values())
    n = better + worse
    tail = sum(comb(n, i) for i in range(min(better, worse) + 1))
    return Sign(better, worse, len(by_task) - n, min(1.0, 2 * tail / 2**n))
