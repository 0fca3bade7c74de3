"""The policy loss of one optimizer step, by veRL's registry, and what weighs alike in it.

With ratio_t = exp(new_t - old_t) of a token's log-probabilities, old as recorded, advantage A, and clip(x) held within
[1 - clip_ratio, 1 + clip_ratio_high]:

    ppo     max(-A ratio_t, -A clip(ratio_t)), at most -3 A where A < 0     arXiv:1707.06347, 1912.09729
    gspo    the same with the ratio of the row, exp(mean_t (new_t - old_t)), its gradient going through each token;
            no bound where A < 0                                            arXiv:2507.18071
    cispo   -A stop(clip(ratio_t)) new_t                                    arXiv:2506.13585

The loss of a step is  Σ_t w_t loss_t / N  over its N trained tokens, with

    token     w_t = 1                   every trained token weighs alike; more rows or longer ones weigh more
    row       w_t = N / (rows n_row)    every row does: its loss is the mean over its n_row trained tokens
    rollout   w_t = N / (rollouts n)    every rollout does, into however many rows its n trained tokens are cut

times the token's importance weight where that is on (`off_policy`). To it come, where their coefficients are not 0,

    kl_coef  Σ_t k(new_t, reference_t) / N  -  entropy_coef  Σ_t H_t / N

whatever the weighting, with H_t the entropy of the policy's distribution at the row's temperature (nats), and k, with
d = reference_t - new_t, one of veRL's estimators of KL(policy || reference) (joschu.net/blog/kl-approx.html)

    low_var_kl   exp(d) - d - 1, at most 10, d held within ±20
    kl           -d          its expected gradient is 0: to look at, rather than to train with
    abs          |d|
    mse          d² / 2
    …+           the value of the name before the +, with the gradient of mse, which is that of the KL on policy

A masked position is selected out of every sum, never multiplied by 0.
"""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from training.job import Loss
from training.job import TrainSettings
from training.job import Weighting
from training.rows import Row

_NAMES: Mapping[Loss, str] = {"ppo": "vanilla", "gspo": "gspo", "cispo": "cispo"}


def actor_options(settings: TrainSettings) -> dict[str, Any]:
    """The options of veRL's `ActorConfig` that say what the loss is."""
    high = settings.clip_ratio if settings.clip_ratio_high is None else settings.clip_ratio_high
    return {
        "policy_loss": {"loss_mode": _NAMES[settings.loss]},
        "clip_ratio": settings.clip_ratio,
        "clip_ratio_low": settings.clip_ratio,
        "clip_ratio_high": high,
        "loss_agg_mode": "token-mean",
        "use_kl_loss": settings.kl_coef > 0,
        "kl_loss_coef": settings.kl_coef,
        "kl_loss_type": settings.kl_penalty,
        "entropy_coeff": settings.entropy_coef,
    }


def row_weights(rows: Sequence[Row], weighting: Weighting) -> list[float]:
    """The weight of each row's trained tokens in the loss of one optimizer step on `rows`; their mean over all trained
    tokens is 1."""
    tokens = [row.trained_tokens for row in rows]
    if weighting == "token":
        return [1.0] * len(rows)
    if weighting == "row":
        return [sum(tokens) / (len(rows) * own) for own in tokens]
    together: Counter[str] = Counter()
    for row, own in zip(rows, tokens, strict=True):
        together[row.rollout] += own
    return [sum(tokens) / (len(together) * together[row.rollout]) for row in rows]
