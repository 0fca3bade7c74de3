"""Rates and intervals against published and worked values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.statistics import difference
from tasks.statistics import mean
from tasks.statistics import rate
from tasks.statistics import wilson


@pytest.mark.parametrize(
    ("k", "n", "lo", "hi"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, Statistics in Medicine 17:857, table I, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_equals_published_values(k: int, n: int, lo: float, hi: float) -> None:
    assert wilson(k, n) == pytest.approx((lo, hi), abs=5e-5)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_rate_and_mirrors(kn: tuple[int, int]) -> None:
    k, n = kn
    lo, hi = wilson(k, n)
    assert 0 <= lo <= k / n <= hi <= 1
    assert wilson(n - k, n) == pytest.approx((1 - hi, 1 - lo))


@pytest.mark.parametrize(("k", "n"), [(0, 0), (3, 2), (-1, 2)])
def test_what_is_no_rate_is_refused(k: int, n: int) -> None:
    with pytest.raises(ValueError, match="is no rate"):
        wilson(k, n)


def test_no_data_is_not_zero() -> None:
    nothing = rate([])
    assert (nothing.n, nothing.rate, nothing.lo, nothing.hi) == (0, None, None, None)
    assert mean([]) is None
    assert difference(nothing, rate([True])) is None


def test_difference_equals_newcombes_published_value() -> None:
    # Newcombe 1998, Statistics in Medicine 17:873, table II, method 10: 56/70 - 48/80 = 0.2000 (0.0524, 0.3339)
    found = difference(rate([True] * 48 + [False] * 32), rate([True] * 56 + [False] * 14))
    assert found == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


def test_rate_and_mean() -> None:
    assert (rate([True, False]).k, rate([True, False]).rate) == (1, 0.5)
    assert mean([1.0, 0.0, 0.5]) == 0.5
