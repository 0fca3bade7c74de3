"""O52: a missing reward is no reward: out of the loss and out of the baseline, and nothing becomes NaN."""

import math

import pytest

from tests.support.calls import Recording
from training.advantages import group_advantages

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("missing", [None, math.nan])
def test_o52_the_baseline_is_over_the_scored(missing: float | None) -> None:
    rollouts = [Recording(n).ended(reward) for n, reward in enumerate([1.0, missing, 0.0, 1.0])]
    advantages, report = group_advantages(rollouts, {r["rollout"] for r in rollouts})
    scored = [rollouts[n]["rollout"] for n in (0, 2, 3)]
    # mean 2/3, sample std 0.57735
    assert advantages == pytest.approx(dict(zip(scored, [0.57735, -1.1547, 0.57735], strict=True)), abs=1e-4)
    assert report.reward_mean == pytest.approx(2 / 3)
    assert (report.excluded, report.sizes) == ({"no_reward": 1}, {"r-e001-t": (3, 4)})


def test_o52_a_group_without_any_verdict_is_dropped_and_counted() -> None:
    rollouts = [Recording(n).ended(None) for n in range(4)]
    advantages, report = group_advantages(rollouts, {r["rollout"] for r in rollouts})
    assert advantages == {}
    assert (report.dropped, report.reward_mean) == ({"no_voter": 1}, None)
