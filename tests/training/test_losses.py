"""The gradient of a whole optimizer step, for every advantage, loss and weighting, against plain PyTorch in float64."""

import random
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import get_args

import pytest
import torch
from transformers import Qwen3ForCausalLM

from tests.support.calls import Recording
from tests.support.policy import VOCAB
from tests.support.policy import hf_log_probs
from tests.support.policy import make_learner
from tests.support.policy import save_policy
from training.advantages import group_advantages
from training.job import Advantage
from training.job import Loss
from training.job import Weighting
from training.losses import row_weights
from training.rows import Row

if TYPE_CHECKING:
    from training.learner import Learner

pytestmark = pytest.mark.timeout(180)  # veRL takes seconds to import

LOW, HIGH = 0.2, 0.3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module", params=get_args(Loss))
def learner(request: pytest.FixtureRequest, folder: Path) -> Iterator["Learner"]:
    yield make_learner(
        folder,
        learning_rate=1e-9,
        clip_grad=1e9,
        micro_batch_tokens=32,
        loss=request.param,
        clip_ratio=LOW,
        clip_ratio_high=HIGH,
    )


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[Row]:
    """Rows of 7 rollouts in 2 groups, of 1 to 3 rows each, recorded by a policy that was a little different: ratios on
    either side of each clip, some between the two upper ones, and one beyond the bound for negative advantages."""
    order = random.Random(0)
    made = []
    for rollout in range(7):
        for _ in range(1 + rollout % 3):
            ids = [order.randrange(VOCAB) for _ in range(order.randrange(6, 20))]
            mask = [0, 0, *(order.randrange(2) for _ in ids[3:]), 1]
            now = hf_log_probs(folder, ids, 0.7)
            then = [score + order.choice([-0.6, -0.25, -0.1, 0.02, 0.15, 0.5, -1.5]) for score in now]
            logprobs = [score if bit else 0.0 for score, bit in zip(then, mask, strict=True)]
            name = Recording(rollout, task="ab"[rollout % 2]).rollout
            made.append(Row(name, "ab"[rollout % 2], ids, mask, logprobs, (0,), (0,), 0.7))
    return made


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


@pytest.mark.parametrize("weighting", get_args(Weighting))
def test_a_step_has_the_gradient_of_its_formula(
    learner: "Learner", folder: Path, rows: list[Row], weighting: Weighting, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = learner.settings.model_copy(update={"weighting": weighting})
    monkeypatch.setattr(learner, "settings", settings)
    names = sorted({row.rollout for row in rows})
    # As the four estimators give them: all are numbers of either sign, some large.
    advantages = dict(zip(names, [1.4, -0.3, 0.2, -1.1, 0.05, 0.9, -2.0], strict=True))
    taken = _gradient_of_step(learner, rows, advantages, monkeypatch)
    expected = _reference(folder, rows, advantages, settings.loss, weighting)
    assert taken.keys() == expected.keys()
    flat = torch.cat([taken[name].double().flatten() for name in expected])
    whole = torch.cat([gradient.flatten() for gradient in expected.values()])
    assert whole.norm() > 1e-3
    assert float((flat - whole).norm() / whole.norm()) < 1e-4


def test_weights_are_what_the_names_say(rows: list[Row]) -> None:
    tokens = [row.trained_tokens for row in rows]
    for weighting in get_args(Weighting):
        weights = row_weights(rows, weighting)
        assert sum(w * n for w, n in zip(weights, tokens, strict=True)) == pytest.approx(sum(tokens))
    shares: dict[str, float] = {}
    for row, weight in zip(rows, row_weights(rows, "rollout"), strict=True):
        shares[row.rollout] = shares.get(row.rollout, 0.0) + weight * row.trained_tokens
    assert list(shares.values()) == pytest.approx([sum(tokens) / 7] * 7)


def _gradient_of_step(
    learner: "Learner", rows: list[Row], advantages: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> dict[str, torch.Tensor]:
    engine: Any = learner._worker.engine
    found: dict[str, torch.Tensor] = {}

    def keep(*_: Any, **__: Any) -> None:
        for name, parameter in engine.module.named_parameters():
            gradient = parameter.grad
            found[name] = (gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient).clone()

    with monkeypatch.context() as patch:
        patch.setattr(engine.optimizer, "step", keep)
        learner.update(rows, advantages, seed=0, step=0)
    return found


def _reference(
    folder: Path, rows: list[Row], advantages: dict[str, float], loss: Loss, weighting: Weighting
) -> dict[str, torch.Tensor]:
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    total = torch.zeros((), dtype=torch.float64)
    tokens = sum(row.trained_tokens for row in rows)
    rollouts = len({row.rollout for row in rows})
    for row in rows:
        ids = torch.tensor(row.ids)
        scores = (model(ids[None]).logits[0, :-1] / row.temperature).log_softmax(-1)
        mask = torch.tensor(row.mask[1:]).bool()
        new = scores.gather(1, ids[1:, None])[:, 0][mask]
        old = torch.tensor(row.logprobs[1:], dtype=torch.float64)[mask]
        each = _token_losses(loss, new, old, advantages[row.rollout])
        if weighting == "token":
            total = total + each.sum() / tokens
        elif weighting == "row":
            total = total + each.mean() / len(rows)
        else:
            own = sum(other.trained_tokens for other in rows if other.rollout == row.rollout)
            total = total + each.sum() / own / rollouts
    total.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


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
