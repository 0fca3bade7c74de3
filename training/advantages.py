"""Rewards → one advantage per rollout, by veRL's estimators.

One rollout votes once, however many rows it has (case O57), and votes only if it is trained (cases O52, O56): it must
count (`why_excluded`) and have at least one row. A group is dropped if fewer than two of its members vote or if all
have the same reward: there is nothing to compare. Under grpo_passk so is one whose best is tied.

    grpo         (reward_i - mean) / (std + 1e-6)      arXiv:2402.03300
    dr_grpo      reward_i - mean                       arXiv:2503.20783
    rloo         reward_i - mean of the others         arXiv:2402.14740
    grpo_passk   (best - second best) / (std + 1e-6)   for the best one, 0 for the others: arXiv:2503.19595

with mean and sample std over the group's n voters. Then, where it is below 0, advantage_i *= negative_weight, and with
an outcome_gate above 0

    advantage_i = min(advantage_i, 0)   where reward_i < outcome_gate

so that only what reached the outcome is made more likely; a group in which nothing did is dropped: its rewards differ
by shaping or partial credit only, and to compare them is to scale that up (case O53).

With `negative_weight` 1 nothing is changed. At 0 only rollouts above their group's mean are learned from; a failed
rollout otherwise blames every token in it, the right ones too (docs/architecture.md has what we saw).
"""

import math
from collections import Counter
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import numpy as np
import torch

from training.job import Advantage

_ESTIMATORS: Mapping[Advantage, tuple[str, bool]] = {
    "grpo": ("grpo", True),
    "dr_grpo": ("grpo", False),
    "rloo": ("rloo", False),
    "grpo_passk": ("grpo_passk", True),
}
"""veRL's name of the estimator, and whether it divides by the group's std."""

TOLERANCE = 1e-9
"""Rewards that differ by less are equal."""


@dataclass
class GroupReport:
    """`excluded` counts rollouts and `dropped` counts groups, by reason. `sizes` is group → (voters, samples).
    `reward_mean` is over all rollouts with a reward that counts; None if there is none."""

    groups: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    excluded: Counter[str] = field(default_factory=Counter)
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    reward_mean: float | None = None


def why_excluded(rollout: Mapping[str, Any]) -> str | None:
    """Why a rollout (row of `records.ROLLOUTS`) is not trained on; None if it counts."""
    if rollout["kind"] != "train":
        return "not_train"
    if rollout["error_class"] not in (None, "PolicyFailure"):
        return str(rollout["error_class"])
    if not rollout["complete"]:
        return "incomplete"
    if rollout["reward"] is None or not math.isfinite(rollout["reward"]):
        return "no_reward"
    return None


def group_advantages(
    rollouts: Iterable[Mapping[str, Any]],
    with_rows: Collection[str],
    negative_weight: float = 1.0,
    advantage: Advantage = "grpo",
    outcome_gate: float = 0.0,
) -> tuple[dict[str, float], GroupReport]:
    """Rollout id → advantage for the rollouts to train, of those in the table `rollouts` that have rows."""
    report = GroupReport()
    groups: dict[str, list[Mapping[str, Any]]] = {}
    rewards = []
    for rollout in _last_tries(rollouts, report):
        members = groups.setdefault(rollout["group"], [])
        reason = why_excluded(rollout)
        if reason is None:
            rewards.append(rollout["reward"])
            reason = None if rollout["rollout"] in with_rows else "no_rows"
        if reason is None:
            members.append(rollout)
        else:
            report.excluded[reason] += 1
        voters, samples = report.sizes.get(rollout["group"], (0, 0))
        report.sizes[rollout["group"]] = (voters + (reason is None), samples + 1)
    report.groups = len(groups)
    report.reward_mean = sum(rewards) / len(rewards) if rewards else None
    kept = []
    for members in groups.values():
        values = sorted(m["reward"] for m in members)
        if not members:
            report.dropped["no_voter"] += 1
        elif len(members) == 1:
            report.dropped["one_voter"] += 1
        elif values[-1] - values[0] < TOLERANCE:
            report.dropped["same_reward"] += 1
        elif advantage == "grpo_passk" and values[-1] - values[-2] < TOLERANCE:
            report.dropped["best_is_tied"] += 1
        elif values[-1] < outcome_gate - TOLERANCE:
            report.dropped["no_outcome"] += 1
        else:
            report.kept += 1
            kept += members
    advantages = _estimated(kept, advantage) if kept else {}
    for member in kept:
        if member["reward"] < outcome_gate - TOLERANCE:
            advantages[member["rollout"]] = min(advantages[member["rollout"]], 0.0)
    return {name: a if a >= 0 else a * negative_weight for name, a in advantages.items()}, report


def _last_tries(rollouts: Iterable[Mapping[str, Any]], report: GroupReport) -> list[Mapping[str, Any]]:
    """One rollout per sample: a later try replaces an earlier one. Rollouts that are not for training are left out."""
    last: dict[tuple[str, int], Mapping[str, Any]] = {}
    for rollout in sorted(rollouts, key=lambda r: (r["group"], r["sample"], r["try"])):
        if rollout["kind"] != "train":
            report.excluded["not_train"] += 1
            continue
        slot = (rollout["group"], rollout["sample"])
        if slot in last:
            report.excluded["replaced"] += 1
        last[slot] = rollout
    return list(last.values())


def _estimated(rollouts: list[Mapping[str, Any]], advantage: Advantage) -> dict[str, float]:
    # veRL's estimators give a group of one its raw reward as advantage, or refuse it: such groups must not come here.
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    name, by_std = _ESTIMATORS[advantage]
    rewards = torch.tensor([[r["reward"]] for r in rollouts], dtype=torch.float64)
    advantages, _ = get_adv_estimator_fn(name)(
        token_level_rewards=rewards,
        response_mask=torch.ones_like(rewards),
        index=np.array([r["group"] for r in rollouts], dtype=object),
        config=AlgoConfig(norm_adv_by_std_in_grpo=by_std),
        **({"norm_adv_by_std_in_grpo": by_std} if name == "grpo" else {}),
    )
    return {r["rollout"]: float(a) for r, a in zip(rollouts, advantages[:, 0], strict=True)}
