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
