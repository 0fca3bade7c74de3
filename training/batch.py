"""Rows → the nested (jagged) tensors that veRL's engine reads. Nothing is padded, so no token is ever taken for padding
by its id (case O34)."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict

from training.job import Weighting
from training.losses import row_weights
from training.rows import Row


def rl_batch(rows: Sequence[Row], advantages: Mapping[str, float], weighting: Weighting = "token") -> TensorDict:
    """A batch for veRL's PPO loss, of shape (rows,).

    `prompts` is what precedes a row's first trained token and `responses` the rest; `response_mask`, `old_log_probs`
    (as recorded), `advantages` (the rollout's, at trained tokens, else 0) and `rollout_is_weights` (the token's weight
    in the loss, by veRL's name for such a factor) run along the responses.
    """
    weights = row_weights(rows, weighting)
    starts = [list(row.mask).index(1) for row in rows]
    spread = [[advantages[row.rollout] * bit for bit in row.mask] for row in rows]
    mask = _nested([row.mask[start:] for row, start in zip(rows, starts, strict=True)], torch.int64)
    return _batch(
        rows,
        prompts=_nested([row.ids[:start] for row, start in zip(rows, starts, strict=True)], torch.int64),
        responses=_nested([row.ids[start:] for row, start in zip(rows, starts, strict=True)], torch.int64),
        response_mask=mask,
        loss_mask=mask,
        old_log_probs=_nested([row.logprobs[s:] for row, s in zip(rows, starts, strict=True)], torch.float32),
        advantages=_nested([a[start:] for a, start in zip(spread, starts, strict=True)], torch.float32),
        rollout_is_weights=_nested(
            [[weight] * (len(row.ids) - s) for row, weight, s in zip(rows, weights, starts, strict=True)], torch.float32
        ),
    )


def sft_batch(rows: Sequence[Row], weighting: Weighting = "token") -> TensorDict:
    """A batch for veRL's SFT loss and for scoring, of shape (rows,); `loss_mask` runs along the whole row and holds the
    token's weight in the loss."""
    weights = row_weights(rows, weighting)
    masks = [[weight * bit for bit in row.mask] for row, weight in zip(rows, weights, strict=True)]
    return _batch(rows, loss_mask=_nested(masks, torch.float32))


def _batch(rows: Sequence[Row], **tensors: torch.Tensor) -> TensorDict:
    tensors["input_ids"] = _nested([row.ids for row in rows], torch.int64)
    tensors["position_ids"] = _nested([range(len(row.ids)) for row in rows], torch.int64)
    batch = TensorDict(tensors, batch_size=[len(rows)])
    temperatures = [row.temperature for row in rows]
    if len(set(temperatures)) == 1:
        # A number lets veRL skip a copy of all logits where it is 1.
        from verl.utils import tensordict_utils

        tensordict_utils.assign_non_tensor(batch, temperature=temperatures[0])
    else:
        batch["temperature"] = torch.tensor(temperatures)
    return batch


def _nested(values: Sequence[Sequence[Any]], dtype: torch.dtype) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(v, dtype=dtype) for v in values], layout=torch.jagged)
