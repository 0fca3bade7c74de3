"""O32: a length limit never leaves lists of different lengths, and tool output has no gradient in any loss mode."""

import pytest
import torch

from tests.support.calls import Recording
from training.rows import build_rows

TOOL = [20, 21, 22, 23]


def recording() -> Recording:
    rec = Recording()
    rec.call(None, [1, 2], [3, 4])
    rec.call(0, TOOL, [5, 6])
    return rec


def test_o32_a_row_over_the_limit_is_refused_whole_and_counted() -> None:
    rows, report = build_rows(recording().calls, max_row_tokens=7)
    assert rows == []
    assert (report.refused, report.refused_tokens) == ({"row_too_long": 2}, {"row_too_long": 4})


def test_o32_the_tail_after_the_last_trained_token_is_cut_from_every_list() -> None:
    rec = Recording()
    rec.call(None, [1, 2], [3, 4])
    rec.call(0, TOOL, [5, 6], findings=["ids_missing"])
    ((row,), _) = build_rows(rec.calls, max_row_tokens=7)
    assert (row.ids, row.mask, row.logprobs) == ([1, 2, 3, 4], [0, 0, 1, 1], [0, 0, -1, -1])
    assert (row.calls, row.versions) == ((0,), (0,))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "mode", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
)
def test_o32_tool_tokens_have_no_gradient(mode: str) -> None:
    from training.cpu_platform import select_device

    select_device("cpu")
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import FSDPActorConfig

    ((row,), _) = build_rows(recording().calls, max_row_tokens=10)
    mask = torch.tensor([row.mask])
    new = torch.full(mask.shape, -0.95, requires_grad=True)
    loss, _ = get_policy_loss_fn("vanilla")(
        old_log_prob=torch.tensor([row.logprobs]),
        log_prob=new,
        advantages=torch.full(mask.shape, -1.0),
        response_mask=mask,
        loss_agg_mode=mode,
        config=FSDPActorConfig(strategy="fsdp2", rollout_n=1, use_dynamic_bsz=True),
    )
    loss.backward()
    assert new.grad is not None
    assert (new.grad[0] != 0).tolist() == [bool(bit) for bit in row.mask]
