"""What optimizer steps are reported as, whoever makes them (`training.learner`, veRL's `main_ppo`)."""

import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from training.job import TrainSettings

SUMS = ("tokens", "kl", "clipped", "surprise", "disagreement", "max_gap", "reference_kl", "entropy")
"""What the loss of a micro-batch reports: sums over its trained tokens, but for `max_gap`, the largest."""


def step_numbers(sums: Mapping[str, float], loss: float, grad_norm: float, options: TrainSettings) -> dict[str, float]:
    """The numbers of one optimizer step: those of `SUMS`, `loss` (a mean over the step's tokens), `grad_norm` (before
    clipping) and `policy`, the sum of the loss without KL term and entropy bonus."""
    policy = loss * sums["tokens"]
    policy -= options.kl_coef * sums.get("reference_kl", 0.0) - options.entropy_coef * sums.get("entropy", 0.0)
    return {"loss": loss, "policy": policy, "grad_norm": grad_norm, **sums}


def summary(steps: Sequence[Mapping[str, float]], settings: TrainSettings) -> dict[str, Any]:
    """An update's numbers from those of its steps; what is a mean is None where there was none."""
    tokens = sum(s["tokens"] for s in steps)

    def mean(name: str) -> float | None:
        return sum(s[name] for s in steps) / tokens if tokens else None

    norms = [s["grad_norm"] for s in steps if math.isfinite(s["grad_norm"])]
    numbers: dict[str, Any] = {
        "optimizer_steps": len(steps),
        "refused_steps": len(steps) - len(norms),
        "pg_loss": mean("policy"),
        "grad_norm": max(norms, default=None),
        "ppo_kl": mean("kl"),
        "clip_fraction": mean("clipped"),
        "entropy_estimate": mean("surprise"),
    }
    if steps:
        first = steps[0]
        numbers["logprob_agreement"] = {
            "mean": first["disagreement"] / first["tokens"],
            "max": first["max_gap"],
            "tokens": int(first["tokens"]),
        }
    if settings.kl_coef:
        numbers["reference_kl"] = mean("reference_kl")
    if settings.entropy_coef:
        numbers["entropy"] = mean("entropy")
    return numbers
