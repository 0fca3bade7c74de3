"""A whole optimizer step's gradient, for every loss, weighting and other term, against plain PyTorch in float64."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import get_args

import pytest
import torch
from transformers import Qwen3ForCausalLM

from tests.support.calls import Recording
from tests.support.gradients import ADVANTAGES
from tests.support.gradients import distance
from tests.support.gradients import gradient_of_step
from tests.support.gradients import rows_of
from tests.support.gradients import set_objective
from tests.support.policy import make_learner
from tests.support.policy import save_policy
from training.advantages import group_advantages
from training.job import Advantage
from training.job import KlPenalty
from training.job import Loss
from training.job import Objective
from training.job import Weighting
from training.losses import row_weights
from training.rows import Row

if TYPE_CHECKING:
    from training.learner import Learner

pytestmark = pytest.mark.timeout(180)  # veRL takes seconds to import

LOW, HIGH = 0.2, 0.3

RECOMPUTED = {"old_policy": "recomputed"}
TERMS: dict[str, dict[str, Any]] = {
    "none": {},
    "kl and entropy": {"kl_coef": 0.3, "entropy_coef": 0.2},
    "old policy recomputed": RECOMPUTED,
    "tokens weighed": RECOMPUTED | {"rollout_is": "token", "rollout_is_threshold": 1.5},
    "rows weighed": RECOMPUTED | {"rollout_is": "sequence", "rollout_is_threshold": 3.0},
    "tokens rejected": {"rollout_rs": "token_k1", "rollout_rs_threshold": 1.7},
    "rows rejected": {"rollout_rs": "seq_mean_k2", "rollout_rs_threshold": 0.2},
    "all": RECOMPUTED
    | {"kl_coef": 0.3, "kl_penalty": "mse", "entropy_coef": 0.2}
    | {"rollout_is": "token", "rollout_is_threshold": 1.5, "rollout_rs": "token_k1", "rollout_rs_threshold": 2.0},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(tmp_path_factory.mktemp("reference"), seed=1)


@pytest.fixture(scope="module")
def learner(folder: Path) -> "Learner":
    return make_learner(
        folder, learning_rate=1e-9, clip_grad=1e9, micro_batch_tokens=32, clip_ratio=LOW, clip_ratio_high=HIGH
    )


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[Row]:
    return rows_of(folder)


def by_hand(rewards: Sequence[float], advantage: Advantage) -> list[float]:
    mean = sum(rewards) / len(rewards)
    std = (sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)) ** 0.5
    if advantage == "grpo":
        return [(r - mean) / (std + 1e-6) for r in rewards]
    if advantage == "dr_grpo":
        return [r - mean for r in rewards]
    if advantage == "rloo":
        return [r - (sum(rewards) - r) / (len(rewards) - 1) for r in rewards]
    best, second = sorted(rewards)[-1:-3:-1]
    return [(best - second) / (std + 1e-6) if r == best else 0.0 for r in rewards]


@pytest.mark.parametrize("advantage", get_args(Advantage))
def test_advantages_are_those_of_their_formulas(advantage: Advantage) -> None:
    rewards = {"a": [1.0, 0.25, 0.0, 0.5], "b": [0.0, 1.0, 0.125]}
    rollouts = [Recording(n, task).ended(reward) for task in rewards for n, reward in enumerate(rewards[task])]
    found, _ = group_advantages(rollouts, {r["rollout"] for r in rollouts}, advantage=advantage)
    expected = [a for own in rewards.values() for a in by_hand(own, advantage)]
    assert list(found.values()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("weighting", get_args(Weighting))
@pytest.mark.parametrize("loss", get_args(Loss))
def test_a_step_has_the_gradient_of_its_formula(
    learner: "Learner",
    folder: Path,
    other: Path,
    rows: list[Row],
    loss: Loss,
    weighting: Weighting,
    terms: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = TERMS[terms] | ({"reference_model": str(other)} if "kl_coef" in TERMS[terms] else {})
    set_objective(learner, monkeypatch, loss=loss, weighting=weighting, **given)
    advantages = dict(zip(sorted({row.rollout for row in rows}), ADVANTAGES, strict=True))
    taken = gradient_of_step(learner, rows, advantages, monkeypatch)
    assert distance(taken, _reference(folder, other, rows, advantages, learner.settings)) < 1e-4


@pytest.mark.parametrize("kl_penalty", get_args(KlPenalty))
def test_every_estimator_of_the_kl_has_the_gradient_of_its_formula(
    learner: "Learner",
    folder: Path,
    other: Path,
    rows: list[Row],
    kl_penalty: KlPenalty,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_objective(learner, monkeypatch, kl_coef=1.0, kl_penalty=kl_penalty, reference_model=str(other))
    advantages = {row.rollout: 0.0 for row in rows}
    taken = gradient_of_step(learner, rows, advantages, monkeypatch)
    assert distance(taken, _reference(folder, other, rows, advantages, learner.settings)) < 1e-4


def test_what_the_reference_says_of_a_masked_token_does_not_matter(
    learner: "Learner", other: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unwell:
        def log_probs(self, rows: list[Row]) -> list[list[float]]:
            real = make_learner(other).log_probs(rows)
            return [
                [score if bit else bad for score, bit in zip(scores, row.mask, strict=True)]
                for row, scores, bad in zip(rows, real, [math.nan, math.inf, -math.inf] * len(rows), strict=False)
            ]

    advantages = {row.rollout: 0.5 for row in rows}
    set_objective(learner, monkeypatch, kl_coef=1.0, kl_penalty="mse", reference_model=str(other))
    wanted = gradient_of_step(learner, rows, advantages, monkeypatch)
    monkeypatch.setattr(learner, "_reference", Unwell)
    assert distance(gradient_of_step(learner, rows, advantages, monkeypatch), wanted) < 1e-6


def test_weights_are_what_the_names_say(rows: list[Row]) -> None:
    tokens = [row.trained_tokens for row in rows]
    for weighting in get_args(Weighting):
        weights = row_weights(rows, weighting)
        assert sum(w * n for w, n in zip(weights, tokens, strict=True)) == pytest.approx(sum(tokens))
    shares: dict[str, float] = {}
    for row, weight in zip(rows, row_weights(rows, "rollout"), strict=True):
        shares[row.rollout] = shares.get(row.rollout, 0.0) + weight * row.trained_tokens
    assert list(shares.values()) == pytest.approx([sum(tokens) / 7] * 7)


def _reference(
    folder: Path, other: Path, rows: list[Row], advantages: dict[str, float], options: Objective
) -> dict[str, torch.Tensor]:
    model, base = (Qwen3ForCausalLM.from_pretrained(each, dtype=torch.float64).eval() for each in (folder, other))
    parts: list[tuple[Row, list[torch.Tensor]]] = []  # of each row: new, old, importance, reference, entropy
    for row in rows:
        scores, new = _scores(model, row)
        kept = torch.tensor(row.mask[1:]).bool()
        recorded = torch.tensor(row.logprobs[1:], dtype=torch.float64)
        own = new.detach()
        kept &= _kept(own - recorded, kept, options)
        if not kept.any():
            continue
        old = own if options.old_policy == "recomputed" else recorded
        importance = torch.ones_like(own)
        if options.rollout_is is not None:
            gap = own - recorded
            log_weight = gap if options.rollout_is == "token" else gap[torch.tensor(row.mask[1:]).bool()].sum()
            importance = log_weight.exp().clamp(max=options.rollout_is_threshold).expand_as(own)
        entropy = -(scores.exp() * scores).sum(-1)
        with torch.no_grad():
            reference = _scores(base, row)[1]
        parts.append((row, [each[kept] for each in (new, old, importance, reference, entropy)]))
    tokens = sum(len(new) for _, (new, *_) in parts)
    rollouts = {row.rollout for row, _ in parts}
    total = torch.zeros((), dtype=torch.float64)
    for row, (new, old, importance, reference, entropy) in parts:
        each = importance * _token_losses(options.loss, new, old, advantages[row.rollout])
        if options.weighting == "token":
            total = total + each.sum() / tokens
        elif options.weighting == "row":
            total = total + each.mean() / len(parts)
        else:
            own_tokens = sum(len(new) for other_row, (new, *_) in parts if other_row.rollout == row.rollout)
            total = total + each.sum() / own_tokens / len(rollouts)
        total = total + options.kl_coef * _kl(options.kl_penalty, new, reference).sum() / tokens
        total = total - options.entropy_coef * entropy.sum() / tokens
    total.backward()  # type: ignore[no-untyped-call]
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def _scores(model: Any, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
    """log-probabilities (tokens - 1, vocabulary) at the row's temperature, and those of the tokens that came."""
    ids = torch.tensor(row.ids)
    scores = (model(ids[None]).logits[0, :-1] / row.temperature).log_softmax(-1)
    return scores, scores.gather(1, ids[1:, None])[:, 0]


def _kept(gap: torch.Tensor, mask: torch.Tensor, options: Objective) -> torch.Tensor:
    limit = options.rollout_rs_threshold
    if options.rollout_rs is None or limit is None:
        return torch.ones_like(mask)
    if options.rollout_rs == "token_k1":
        return gap.abs() <= math.log(limit)
    assert options.rollout_rs == "seq_mean_k2"
    return ((gap[mask] ** 2 / 2).mean() <= limit).expand_as(mask)


def _kl(name: KlPenalty, new: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    d = reference - new
    if name.endswith("+") or name == "mse":
        return d**2 / 2
    return {"low_var_kl": d.exp() - d - 1, "kl": -d, "abs": d.abs()}[name]


def _token_losses(loss: Loss, new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    ratio = (new - old).exp()
    if loss == "cispo":
        return -advantage * ratio.clamp(1 - LOW, 1 + HIGH).detach() * new
    if loss == "gspo":
        ratio = (new - new.detach() + (new - old).mean().detach()).exp()
    worse = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - LOW, 1 + HIGH))
    if loss == "ppo" and advantage < 0:
        worse = worse.clamp(max=-3 * advantage)
    return worse
