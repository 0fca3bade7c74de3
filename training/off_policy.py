"""Rows sampled by a policy that is not quite the one being trained: older weights, or another engine's arithmetic.

With recorded_t as sampled and own_t the trainer's log-probability before the update, both of the token, and
d_t = own_t - recorded_t over a row's trained tokens, by veRL's rollout correction
(verl.trainer.ppo.rollout_corr_helper, verl/docs/algo/rollout_corr_math.md):

    old_policy   recorded: old_t = recorded_t      recomputed: old_t = own_t
    rollout_is   token: exp(d_t)      sequence: exp(Σ_t d_t); at most rollout_is_threshold, times the token's loss
    rollout_rs   keeps what has  |m| <= log threshold  of  d_t                     …_k1
                                   m <= threshold      of  d_t² / 2                …_k2
                                   m <= threshold      of  exp(d_t) - 1 - d_t      …_k3
                 with m the token's, and the token goes (token_…), or the sum, mean or largest of the row, and the row
                 goes (seq_sum_…, seq_mean_…, seq_max_…)

A rejected token becomes context: it is in no sum and no denominator (case O55).
"""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

from training.job import Objective
from training.rows import Row

_REPORTED = ("kl", "k3_kl", "chi2_token", "rollout_is_mean", "rollout_is_max", "rollout_is_eff_sample_size")
"""Of veRL's numbers; KLs are of recorded over own, nats per token."""


def settled(
    rows: Sequence[Row], score: Callable[[Sequence[Row]], Sequence[Sequence[float]]], options: Objective
) -> tuple[Sequence[Row], dict[str, Any]]:
    """The rows as the loss is to take them, and what is reported of it; `score` gives the trainer's log-probability of
    each token before the update, and is asked only where `options` need it."""
    if options.old_policy == "recorded" and options.rollout_rs is None:
        return rows, {}
    rows, found = correct(rows, score(rows), options)
    return rows, {"logprob_agreement": found.pop("logprob_agreement"), "off_policy": found}


def correct(
    rows: Sequence[Row], own: Sequence[Sequence[float]], options: Objective
) -> tuple[list[Row], dict[str, Any]]:
    """The rows as the loss is to take them, and what was found; `own` is the trainer's log-probability of each token.

    The rows' `logprobs` become the old policy's, `importance` the weights, and rejected tokens are masked out; a row
    without any left is not returned. Counted are rejected tokens, rows that lost some or all of theirs, and rollouts
    that lost all.
    """
    places = [[t for t, bit in enumerate(row.mask) if bit] for row in rows]
    before = _padded([[row.logprobs[t] for t in at] for row, at in zip(rows, places, strict=True)])
    now = _padded([[scores[t] for t in at] for scores, at in zip(own, places, strict=True)])
    mask = _padded([[1.0] * len(at) for at in places])
    weights, kept, metrics = compute_rollout_correction_and_rejection_mask(
        old_log_prob=now,
        rollout_log_prob=before,
        response_mask=mask,
        rollout_is=options.rollout_is,
        rollout_is_threshold=options.rollout_is_threshold,
        rollout_rs=options.rollout_rs,
        rollout_rs_threshold=options.rollout_rs_threshold,
    )
    factors = torch.ones_like(mask) if weights is None else weights.batch["rollout_is_weights"]
    old = now if options.old_policy == "recomputed" else before
    corrected = [
        _corrected(row, at, old[n].tolist(), factors[n].tolist(), kept[n].tolist())
        for n, (row, at) in enumerate(zip(rows, places, strict=True))
    ]
    left = [row for row in corrected if row.trained_tokens]
    tokens, rejected = int(mask.sum()), int(mask.sum() - kept.sum())
    gap = (now - before).abs()
    return left, {
        "logprob_agreement": {"mean": float(gap.sum()) / tokens, "max": float(gap.max()), "tokens": tokens},
        "rejected_tokens": rejected,
        "rejected_share": rejected / tokens,
        "rows_touched": int(((mask - kept).sum(-1) > 0).sum()),
        "rows_rejected": len(rows) - len(left),
        "rollouts_rejected": len({row.rollout for row in rows}) - len({row.rollout for row in left}),
        **{name: metrics[f"rollout_corr/{name}"] for name in _REPORTED if f"rollout_corr/{name}" in metrics},
    }


def _padded(values: list[list[float]]) -> torch.Tensor:
    """(rows, most trained tokens), 0 behind a row's end, which is outside the mask."""
    return pad_sequence([torch.tensor(own, dtype=torch.float64) for own in values], batch_first=True)


def _corrected(row: Row, at: list[int], old: list[float], factors: list[float], kept: list[float]) -> Row:
    mask, logprobs, importance = [0] * len(row.ids), [0.0] * len(row.ids), [0.0] * len(row.ids)
    for place, value, factor, keep in zip(at, old, factors, kept, strict=False):  # padding follows a row's end
        if keep:
            mask[place], logprobs[place], importance[place] = 1, value, factor
    return replace(row, mask=mask, logprobs=logprobs, importance=importance)
