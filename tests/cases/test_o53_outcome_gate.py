"""O53: where every attempt failed, what shaping gave is not scaled up to advantages: the gate makes all rewards 0."""

import pytest

from tasks.rewards.scoring import Scoring
from tasks.rewards.scoring import compose
from tests.support.calls import Recording
from training.advantages import group_advantages

pytestmark = pytest.mark.timeout(120)

SHAPED = [0.010, 0.012, 0.009, 0.011]


def rewards(gate: float) -> list[float]:
    scoring = Scoring(weights={"reward": 0.5, "style": 0.5}, gate=gate)
    return [compose(scoring, {"reward": 0.0, "style": 2 * shaped}) for shaped in SHAPED]


def test_o53_with_the_gate_the_group_is_dropped() -> None:
    rollouts = [Recording(n).ended(reward) for n, reward in enumerate(rewards(gate=1.0))]
    advantages, report = group_advantages(rollouts, {r["rollout"] for r in rollouts})
    assert (advantages, report.dropped) == ({}, {"same_reward": 1})


def test_o53_without_it_the_noise_is_full_advantages() -> None:
    assert rewards(gate=0.0) == pytest.approx(SHAPED)
    rollouts = [Recording(n).ended(reward) for n, reward in enumerate(rewards(gate=0.0))]
    advantages, report = group_advantages(rollouts, {r["rollout"] for r in rollouts})
    assert report.dropped == {} and max(advantages.values()) > 1


def test_o53_the_trainers_own_gate_drops_it_whatever_the_task_says() -> None:
    rollouts = [Recording(n).ended(reward) for n, reward in enumerate(SHAPED)]
    advantages, report = group_advantages(rollouts, {r["rollout"] for r in rollouts}, outcome_gate=1.0)
    assert (advantages, report.dropped) == ({}, {"no_outcome": 1})
