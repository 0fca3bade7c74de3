"""Rows → the nested (jagged) tensors that veRL's engine reads. Nothing is padded, so no token is ever taken for padding
by its id (case O34)."""

import random
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NonTensorData
from tensordict import NonTensorStack
from tensordict import TensorDict

from training.job import TrainSettings
from training.job import Weighting
from training.losses import row_weights
from training.rows import Row
from training.vision import Vision


def rl_batch(
    rows: Sequence[Row],
    advantages: Mapping[str, float],
    weighting: Weighting = "token",
    vision: Vision | None = None,
) -> TensorDict:
    """A batch for veRL's PPO loss, of shape (rows,), as every batch with `scored`: whether a token's log-probability is
    wanted.

    `prompts` is what precedes a row's first trained token and `responses` the rest; `response_mask`, `old_log_probs`
    (as recorded), `advantages` (the rollout's, at trained tokens, else 0) and `rollout_is_weights` (the token's weight
    in the loss, by veRL's name for such a factor) run along the responses, and so does `ref_log_prob` where all rows
    have a `reference`; it is 0 at tokens that are not trained, whatever was found there (case O54).
    """
    weights = row_weights(rows, weighting)
    starts = [list(row.mask).index(1) for row in rows]
    spread = [[advantages[row.rollout] * bit for bit in row.mask] for row in rows]
    mask = _nested([row.mask[start:] for row, start in zip(rows, starts, strict=True)], torch.int64)
    more = {}
    if references := [_selected(row.reference, row.mask) for row in rows if row.reference is not None]:
        more["ref_log_prob"] = _nested([r[s:] for r, s in zip(references, starts, strict=True)], torch.float32)
    return _batch(
        rows,
        vision,
        prompts=_nested([row.ids[:start] for row, start in zip(rows, starts, strict=True)], torch.int64),
        responses=_nested([row.ids[start:] for row, start in zip(rows, starts, strict=True)], torch.int64),
        response_mask=mask,
        loss_mask=mask,
        old_log_probs=_nested([row.logprobs[s:] for row, s in zip(rows, starts, strict=True)], torch.float32),
        advantages=_nested([a[start:] for a, start in zip(spread, starts, strict=True)], torch.float32),
        rollout_is_weights=_nested(
            [_factors(row, weight)[s:] for row, weight, s in zip(rows, weights, starts, strict=True)], torch.float32
        ),
        **more,
    )


def mini_batches(rows: Sequence[Row], count: int, order: random.Random) -> Iterator[list[Row]]:
    """The rows in at most `count` parts of whole prompt groups, dealt in a random order: never an empty part."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    names = sorted(groups)
    order.shuffle(names)
    for first in range(min(count, len(names))):
        yield [row for name in names[first::count] for row in groups[name]]


def steps_of(rows: Sequence[Row], settings: TrainSettings, seed: int, epoch: int) -> list[list[Row]]:
    """The rows of each optimizer step of an update, in an order that (seed, epoch) draws."""
    order = random.Random(f"{seed}/{epoch}")
    return [part for _ in range(settings.ppo_epochs) for part in mini_batches(rows, settings.mini_batches, order)]


def share(batch: TensorDict, rank: int, world: int) -> TensorDict:
    """The rows of `batch`, one optimizer step, that fall to `rank` of `world` data-parallel ranks; as many as fall to
    each other one, because each must make as many passes."""
    if world == 1:
        return batch
    from verl.utils import tensordict_utils

    whole = filled(batch, world)
    return tensordict_utils.index_select_tensor_dict(whole, list(range(rank, len(whole), world)))


def filled(batch: TensorDict, multiple: int) -> TensorDict:
    """`batch` with its shortest row again at the end, nothing in it to train, until its rows divide by `multiple`."""
    rows, spare = len(batch), -len(batch) % multiple
    if not spare:
        return batch
    shortest = int(batch["input_ids"].offsets().diff().argmin())
    from verl.utils import tensordict_utils

    more = tensordict_utils.index_select_tensor_dict(batch, [*range(rows), *[shortest] * spare])
    for name in ("loss_mask", "response_mask"):
        if name in more:
            masks = [m if n < rows else torch.zeros_like(m) for n, m in enumerate(more[name].unbind())]
            more[name] = torch.nested.as_nested_tensor(masks, layout=torch.jagged)
    return more


def sft_batch(rows: Sequence[Row], weighting: Weighting = "token", vision: Vision | None = None) -> TensorDict:
    """A batch for veRL's SFT loss and for scoring, of shape (rows,); `loss_mask` runs along the whole row and holds the
    token's weight in the loss."""
    weights = row_weights(rows, weighting)
    masks = [[weight * bit for bit in row.mask] for row, weight in zip(rows, weights, strict=True)]
    return _batch(rows, vision, loss_mask=_nested(masks, torch.float32))


def _batch(rows: Sequence[Row], vision: Vision | None, **tensors: torch.Tensor) -> TensorDict:
    from verl.utils import tensordict_utils

    tensors["input_ids"] = _nested([row.ids for row in rows], torch.int64)
    tensors["scored"] = _nested([row.mask for row in rows], torch.bool)
    if vision is None:
        tensors["position_ids"] = _nested([range(len(row.ids)) for row in rows], torch.int64)
        batch = TensorDict(tensors, batch_size=[len(rows)])
    else:
        shown, positions = vision.inputs(rows)
        tensors["position_ids"] = tensordict_utils.nested_tensor_from_tensor_list(positions, ragged_idx=2)
        batch = TensorDict(tensors, batch_size=[len(rows)])
        batch["multi_modal_inputs"] = NonTensorStack(*map(NonTensorData, shown))
    temperatures = [row.temperature for row in rows]
    if len(set(temperatures)) == 1:
        # A number lets veRL skip a copy of all logits where it is 1.
        tensordict_utils.assign_non_tensor(batch, temperature=temperatures[0])
    else:
        batch["temperature"] = torch.tensor(temperatures)
    return batch


def _factors(row: Row, weight: float) -> list[float]:
    """What each token's loss is multiplied by."""
    if row.importance is None:
        return [weight] * len(row.ids)
    return [weight * factor for factor in row.importance]


def _selected(values: Sequence[float], mask: Sequence[int]) -> list[float]:
    return [value if bit else 0.0 for value, bit in zip(values, mask, strict=True)]


def _nested(values: Sequence[Sequence[Any]], dtype: torch.dtype) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(v, dtype=dtype) for v in values], layout=torch.jagged)
