"""O56: a rollout that is not in the loss does not vote in its group's mean and deviation."""

import pytest

from tests.support.calls import Recording
from training.advantages import group_advantages


@pytest.mark.parametrize(("rewards", "excluded"), [([1.0, 0.0, 0.0, 0.0], 0), ([1.0, 1.0, 0.0], 2)])
def test_o56_without_the_excluded_there_is_no_variance(rewards: list[float], excluded: int) -> None:
    rollouts = [Recording(n).ended(reward) for n, reward in enumerate(rewards)]
    with_rows = {r["rollout"] for n, r in enumerate(rollouts) if n != excluded}
    advantages, report = group_advantages(rollouts, with_rows)
    assert advantages == {}
    assert (report.dropped, report.excluded) == ({"same_reward": 1}, {"no_rows": 1})
