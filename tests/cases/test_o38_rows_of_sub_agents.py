"""O38: interleaved sub-agents are rows of their own, of one trajectory with one reward and one vote."""

import pytest

from tests.support.calls import Recording
from training.advantages import group_advantages
from training.rows import build_rows


@pytest.mark.timeout(120)
def test_o38_three_rows_and_one_vote() -> None:
    rec = Recording()
    a1 = rec.call(None, [1], [10], chain="a")
    b1 = rec.call(None, [2], [20], chain="b")
    a2 = rec.call(a1, [1], [11], chain="a")
    rec.call(None, [3], [30], chain="c")
    rec.call(b1, [2], [21], chain="b")
    rec.call(a2, [1], [12], chain="a")
    other = Recording(1)
    other.call(None, [1], [10])
    rows, _ = build_rows([*rec.calls, *other.calls], max_row_tokens=100)
    assert [row.ids for row in rows[:3]] == [[1, 10, 1, 11, 1, 12], [2, 20, 2, 21], [3, 30]]
    advantages, report = group_advantages([rec.ended(1.0), other.ended(0.0)], {row.rollout for row in rows})
    assert advantages == pytest.approx({rec.rollout: 0.7071, other.rollout: -0.7071}, abs=1e-3)
    assert report.reward_mean == 0.5
