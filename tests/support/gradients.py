"""What a learner's optimizer step would do, and rows to try it on."""

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest
import torch

from tests.support.calls import Recording
from tests.support.policy import VOCAB
from tests.support.policy import hf_log_probs
from training.losses import actor_options
from training.rows import Row

if TYPE_CHECKING:
    from training.learner import Learner

ADVANTAGES = [1.4, -0.3, 0.2, -1.1, 0.05, 0.9, -2.0]
"""As the estimators give them, of the rollouts of `rows_of` in their order: of either sign, some large."""


def rows_of(folder: Path) -> list[Row]:
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


def set_objective(learner: "Learner", monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Have `learner` optimise something else, for one test."""
    settings = type(learner.settings).model_validate(learner.settings.model_dump() | changed)
    monkeypatch.setattr(learner, "settings", settings)
    monkeypatch.setattr(learner, "_actor", replace(learner._actor, **actor_options(settings)))


def gradient_of_step(
    learner: "Learner", rows: list[Row], advantages: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> dict[str, torch.Tensor]:
    """The whole gradient, by parameter, of `learner.update` with one optimizer step, which is not made."""
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


def distance(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """‖found - wanted‖ / ‖wanted‖ over all parameters."""
    assert found.keys() == wanted.keys()
    one, other = (torch.cat([each[name].double().flatten() for name in wanted]) for each in (found, wanted))
    assert other.norm() > 1e-3
    return float((one - other).norm() / other.norm())
