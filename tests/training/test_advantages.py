"""Rewards → one advantage per rollout."""

from typing import Any

import pytest

from tests.support.calls import Recording
from training.advantages import group_advantages
from training.advantages import why_excluded


def ended(rewards: list[float | None], task: str = "t", **fields: Any) -> list[dict[str, Any]]:
    return [Recording(n, task).ended(reward, **fields) for n, reward in enumerate(rewards)]


def everyone(rollouts: list[dict[str, Any]]) -> set[str]:
    return {rollout["rollout"] for rollout in rollouts}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"error_class": "PolicyFailure"}, None),
        ({"error_class": "VerifierError"}, "VerifierError"),
        ({"error_class": "InfrastructureError"}, "InfrastructureError"),
        ({"complete": False}, "incomplete"),
        ({"complete": None}, "incomplete"),
        ({"kind": "heldout"}, "not_train"),
        ({"reward": None}, "no_reward"),
        ({"reward": float("nan")}, "no_reward"),
        ({"reward": float("inf")}, "no_reward"),
    ],
)
def test_which_rollouts_count(fields: dict[str, Any], reason: str | None) -> None:
    assert why_excluded(Recording().ended(1.0) | fields) == reason


def test_grpo_by_hand() -> None:
    rollouts = ended([1.0, 0.0, 0.0, 0.0])
    advantages, report = group_advantages(rollouts, everyone(rollouts))
    # mean 0.25, sample std 0.5
    assert list(advantages.values()) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert (report.groups, report.kept, report.reward_mean) == (1, 1, 0.25)
    assert report.sizes == {"r-e001-t": (4, 4)}


def test_groups_are_compared_within_themselves() -> None:
    rollouts = [*ended([1.0, 0.0], "a"), *ended([3.0, 2.0], "b")]
    advantages, _ = group_advantages(rollouts, everyone(rollouts))
    assert list(advantages.values()) == pytest.approx([0.7071, -0.7071] * 2, abs=1e-3)


def test_a_group_with_nothing_to_compare_is_dropped_and_counted() -> None:
    rollouts = [*ended([1.0, 1.0], "a"), *ended([1.0, None], "b"), *ended([None, None], "c"), *ended([1.0, 0.5], "d")]
    advantages, report = group_advantages(rollouts, everyone(rollouts))
    assert set(advantages) == {r["rollout"] for r in rollouts[6:]}
    assert report.dropped == {"same_reward": 1, "one_voter": 1, "no_voter": 1}
    assert (report.groups, report.kept, report.excluded) == (4, 1, {"no_reward": 3})


def test_pass_at_k_learns_from_a_single_best_only() -> None:
    rollouts = [*ended([1.0, 1.0, 0.0], "a"), *ended([1.0, 0.0, 0.0], "b")]
    advantages, report = group_advantages(rollouts, everyone(rollouts), advantage="grpo_passk")
    assert [a > 0 for a in advantages.values()] == [True, False, False]
    assert set(advantages) == everyone(rollouts[3:])
    assert (report.kept, report.dropped) == (1, {"best_is_tied": 1})


def test_a_later_try_replaces_an_earlier_one() -> None:
    lost, again, other = Recording(0).ended(1.0), Recording(0).ended(0.0), Recording(1).ended(1.0)
    again |= {"rollout": "second-try", "try": 1}
    advantages, report = group_advantages([again, other, lost], {"second-try", *everyone([lost, other])})
    assert set(advantages) == {"second-try", other["rollout"]}
    assert report.excluded == {"replaced": 1}
    assert report.sizes == {"r-e001-t": (2, 2)}


def test_heldout_rollouts_are_no_group() -> None:
    report = group_advantages(ended([1.0, 0.0], kind="heldout"), set())[1]
    assert (report.groups, report.excluded, report.reward_mean) == (0, {"not_train": 2}, None)


def test_negative_advantages_can_be_weighed_less() -> None:
    rollouts = ended([1.0, 0.0, 0.0, 0.0])
    whole, _ = group_advantages(rollouts, everyone(rollouts))
    half, _ = group_advantages(rollouts, everyone(rollouts), negative_weight=0.5)
    assert half == pytest.approx({name: a if a > 0 else a / 2 for name, a in whole.items()})
    assert min(whole.values()) < 0


def test_below_the_outcome_gate_nothing_is_made_more_likely() -> None:
    rollouts = ended([1.0, 0.75, 0.0, 0.25])
    whole, _ = group_advantages(rollouts, everyone(rollouts))
    gated, report = group_advantages(rollouts, everyone(rollouts), outcome_gate=1.0)
    assert [a > 0 for a in whole.values()] == [True, True, False, False]
    assert gated == {name: min(a, 0.0) if n else a for n, (name, a) in enumerate(whole.items())}
    assert (report.kept, report.dropped) == (1, {})


def test_a_group_that_never_reached_the_outcome_is_dropped() -> None:
    rollouts = [*ended([0.75, 0.0], "a"), *ended([0.9, 0.0], "b"), *ended([0.0, 0.0], "c")]
    advantages, report = group_advantages(rollouts, everyone(rollouts), outcome_gate=0.9)
    assert set(advantages) == everyone(rollouts[2:4])
    assert report.dropped == {"no_outcome": 1, "same_reward": 1}
