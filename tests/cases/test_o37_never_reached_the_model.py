"""O37: a rollout that failed before its first call is no sample: no row, no vote."""

import pytest

from tests.support.calls import Recording
from training.advantages import group_advantages
from training.rows import build_rows


@pytest.mark.timeout(120)
def test_o37_two_of_four_count() -> None:
    recordings = [Recording(n) for n in range(4)]
    for rec in recordings[:2]:
        rec.call(None, [1], [2])
    rollouts = [
        recordings[0].ended(1.0),
        recordings[1].ended(0.0),
        recordings[2].ended(None, error_class="HarnessError"),
        recordings[3].ended(0.0),  # scored, but it never called the model
    ]
    rows, _ = build_rows([c for rec in recordings for c in rec.calls], max_row_tokens=100)
    advantages, report = group_advantages(rollouts, {row.rollout for row in rows})
    assert {row.rollout for row in rows} == set(advantages) == {rec.rollout for rec in recordings[:2]}
    assert list(advantages.values()) == pytest.approx([0.7071, -0.7071], abs=1e-3)
    assert report.sizes == {"r-e001-t": (2, 4)}
    assert report.excluded == {"HarnessError": 1, "no_rows": 1}
