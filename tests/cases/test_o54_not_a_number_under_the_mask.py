"""O54: what stands at an untrained position never reaches the loss, not even as NaN times 0."""

import math

import pytest
import torch

from tests.support.calls import Recording
from training.batch import rl_batch
from training.rows import Row
from training.rows import build_rows


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_o54_an_unusable_log_probability_is_not_in_the_row(bad: float | None) -> None:
    rec = Recording()
    rec.call(None, [1], [2], sampled_logprobs=[bad])
    rec.call(0, [3], [4])
    ((row,), _) = build_rows(rec.calls, max_row_tokens=100)
    assert (row.mask, row.logprobs) == ([0, 0, 0, 1], [0.0, 0.0, 0.0, -1.0])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_o54_the_loss_that_we_use_selects(bad: float) -> None:
    from verl.trainer.ppo.core_algos import agg_loss

    values = torch.tensor([[1.0, bad, 3.0]], requires_grad=True)
    loss = agg_loss(loss_mat=values, loss_mask=torch.tensor([[True, False, True]]), loss_agg_mode="token-mean")
    loss.backward()
    assert loss.item() == 2.0
    assert values.grad is not None
    assert values.grad.tolist() == [[0.5, 0.0, 0.5]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_o54_what_a_reference_says_of_an_untrained_token_is_not_in_the_batch(bad: float) -> None:
    row = Row(
        "r", "g", [1, 2, 3, 4], [0, 1, 0, 1], [0.0, -1.0, 0.0, -2.0], (0,), (0,), reference=[bad, -3.0, bad, -4.0]
    )
    assert rl_batch([row], {"r": 1.0})["ref_log_prob"].unbind()[0].tolist() == [-3.0, 0.0, -4.0]
