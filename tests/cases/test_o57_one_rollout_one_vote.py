"""O57: a rollout with more rows does not count more often in the baseline."""

import pytest

from tests.support.calls import Recording
from training.advantages import group_advantages
from training.batch import rl_batch
from training.rows import build_rows


@pytest.mark.timeout(120)
def test_o57_three_rows_and_one_row_are_two_votes() -> None:
    a, b = Recording(0), Recording(1)
    for n in range(3):
        a.call(None, [1], [2], chain=f"c{n}")
    b.call(None, [1], [2])
    rows, _ = build_rows([*a.calls, *b.calls], max_row_tokens=100)
    advantages, report = group_advantages([a.ended(1.0), b.ended(0.0)], {row.rollout for row in rows})
    assert report.reward_mean == 0.5
    assert advantages[a.rollout] == -advantages[b.rollout] > 0
    spread = [part.tolist() for part in rl_batch(rows, advantages)["advantages"].unbind()]
    assert spread == [pytest.approx([advantages[rollout]]) for rollout in [a.rollout] * 3 + [b.rollout]]
