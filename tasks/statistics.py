"""Counts as rates with honest intervals. No data is None, never 0."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt

Z95 = 1.959963984540054
"""Half width of a two-sided 95 % interval of the standard normal distribution."""


@dataclass(frozen=True)
class Rate:
    """`k` successes of `n`, as a rate with its 95 % Wilson interval; rate, lo and hi are None if `n` is 0."""

    k: int
    n: int
    rate: float | None
    lo: float | None
    hi: float | None


def rate(outcomes: Iterable[bool]) -> Rate:
    """The rate of true outcomes."""
    values = list(outcomes)
    k, n = sum(values), len(values)
    if n == 0:
        return Rate(0, 0, None, None, None)
    lo, hi = wilson(k, n)
    return Rate(k, n, k / n, lo, hi)


def wilson(k: float, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval for `k` of `n`: sound for few samples and at 0 and `n`. Raises ValueError otherwise."""
    if not 0 <= k <= n or n == 0:
        raise ValueError(f"{k} of {n} is no rate")
    p = k / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (0.0 if k == 0 else middle - half, 1.0 if k == n else middle + half)


def difference(before: Rate, after: Rate) -> tuple[float, float, float] | None:
    """After minus before with Newcombe's 95 % interval (difference, lo, hi), or None if either has no data.

    It takes the two samples as independent, which is cautious for the same tasks measured twice.
    """
    if before.rate is None or after.rate is None:
        return None
    b, b_lo, b_hi = before.k / before.n, *wilson(before.k, before.n)
    a, a_lo, a_hi = after.k / after.n, *wilson(after.k, after.n)
    return (
        a - b,
        a - b - sqrt((a - a_lo) ** 2 + (b_hi - b) ** 2),
        a - b + sqrt((a_hi - a) ** 2 + (b - b_lo) ** 2),
    )


def mean(values: Iterable[float]) -> float | None:
    """The mean, or None of nothing."""
    found = list(values)
    return sum(found) / len(found) if found else None
