"""The estimators against exact enumeration, the intervals against cases whose answer is known."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from tasks.passk import Sign
from tasks.passk import estimate
from tasks.passk import paired
from tasks.passk import pass_at_k
from tasks.passk import pass_hat_k
from tasks.passk import sign_test
from tasks.statistics import wilson

ALL = [(n, c, k) for n in range(1, 9) for c in range(n + 1) for k in range(1, n + 1)]


@pytest.mark.parametrize(("n", "c", "k"), ALL)
def test_both_estimators_are_what_enumerating_all_subsets_gives(n: int, c: int, k: int) -> None:
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == float(Fraction(sum(any(s) for s in subsets), len(subsets)))
    assert pass_hat_k(n, c, k) == float(Fraction(sum(all(s) for s in subsets), len(subsets)))


def test_many_attempts_do_not_overflow() -> None:
    assert pass_at_k(5000, 1, 100) == 0.02
    assert pass_hat_k(5000, 4999, 100) == 0.98


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 4, 2), (3, 1, 0), (0, 0, 1), (3, -1, 1)])
def test_impossible_counts_are_refused(n: int, c: int, k: int) -> None:
    for estimator in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match="impossible"):
            estimator(n, c, k)


def test_nothing_measured_is_none() -> None:
    assert estimate([]) is None
    assert paired([], []) is None


def test_the_interval_is_over_tasks_not_over_values() -> None:
    """The same task in ten harnesses says no more about other tasks than in one."""
    once = estimate([(f"t{n}", float(n % 2)) for n in range(20)])
    often = estimate([(f"t{n}", float(n % 2)) for n in range(20) for _ in range(10)])
    assert once and often
    assert (once.value, once.cells, often.cells, often.tasks) == (0.5, 20, 200, 20)
    assert (once.lo, once.hi) == (often.lo, often.hi)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    found = [estimate([(str(t), float(v)) for t, v in enumerate(rng.random(40))]) for _ in range(60)]
    held = sum(each is not None and each.lo <= 0.5 <= each.hi for each in found)
    assert 51 <= held <= 60


def test_the_same_values_give_the_same_interval() -> None:
    values = [(str(t), t / 10) for t in range(10)]
    assert estimate(values) == estimate(values)


@pytest.mark.parametrize(("value", "k"), [(1.0, 8), (0.0, 0), (0.5, 4)])
def test_where_all_tasks_are_alike_the_interval_is_wilsons_and_not_a_point(value: float, k: int) -> None:
    found = estimate([(str(t), value) for t in range(8)])
    assert found is not None
    assert (found.lo, found.hi) == pytest.approx(wilson(k, 8))


def test_a_paired_difference_knows_that_the_tasks_are_the_same() -> None:
    first = [(str(t), (t % 10) / 20) for t in range(40)]
    second = [(task, value + (0.2 if int(task) % 4 else 0.1)) for task, value in first]
    result = paired(first, second)
    assert result is not None
    difference, sign = result
    assert difference.value == pytest.approx(0.175)
    assert 0.15 < difference.lo < difference.hi < 0.2  # either policy alone varies by ten times as much
    assert (sign.better, sign.worse, sign.equal) == (40, 0, 0)


def test_equal_policies_differ_by_nothing_with_an_interval_about_it() -> None:
    result = paired([("a", 1.0), ("b", 0.0)], [("a", 1.0), ("b", 0.0)])
    assert result is not None
    assert result[0].value == 0
    assert result[0].lo < 0 < result[0].hi
    assert result[1] == Sign(0, 0, 2, 1.0)


def test_other_tasks_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="same tasks"):
        paired([("a", 1.0)], [("b", 1.0)])


def test_the_sign_test_is_the_binomials() -> None:
    found = sign_test([("a", 1.0), ("b", 0.5), ("c", 0.25), ("d", 0.5), ("e", -1.0), ("f", 0.0)])
    assert found == Sign(4, 1, 1, 2 * (1 + 5) / 2**5)
    assert sign_test([("a", 0.5), ("a", -0.5)]) == Sign(0, 0, 1, 1.0)
