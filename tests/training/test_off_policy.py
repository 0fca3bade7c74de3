"""Importance weights and rejection, by hand."""

import math
from typing import Any
from typing import get_args

import pytest

from training.job import Objective
from training.job import Rejection
from training.rows import Row

pytestmark = pytest.mark.timeout(180)  # veRL takes seconds to import

# Trainer's over recorded probability of the trained tokens, row by row.
RATIOS = [[2.0, 0.5, 1.0], [1.1, 1.2], [4.0]]


def rows() -> tuple[list[Row], list[list[float]]]:
    """Rows with an untrained token between trained ones, and the trainer's scores, which say nonsense of those."""
    made, own = [], []
    for n, ratios in enumerate(RATIOS):
        ids, mask, logprobs, scores = [9], [0], [0.0], [math.nan]
        for t, ratio in enumerate(ratios):
            ids += [t, 9]
            mask += [1, 0]
            logprobs += [-1.0 - t, 0.0]
            scores += [-1.0 - t + math.log(ratio), math.nan]
        made.append(Row(f"r{n}", "g", ids[:-1], mask[:-1], logprobs[:-1], (0,), (0,)))
        own.append(scores[:-1])
    return made, own


def corrected(**options: Any) -> tuple[list[Row], dict[str, Any]]:
    from training.off_policy import correct

    return correct(*rows(), Objective(**options))


def trained(row: Row, values: Any) -> list[float]:
    return [value for value, bit in zip(values, row.mask, strict=True) if bit]


def test_the_old_policy_is_the_trainers_own_or_the_recorded_one() -> None:
    own, _ = corrected(old_policy="recomputed")
    assert [row.mask for row in own] == [row.mask for row in rows()[0]]
    assert trained(own[0], own[0].logprobs) == pytest.approx([math.log(2) - 1, math.log(0.5) - 2, -3.0])
    recorded, _ = corrected(rollout_rs="token_k1", rollout_rs_threshold=100.0)
    assert [row.logprobs for row in recorded] == [row.logprobs for row in rows()[0]]


@pytest.mark.parametrize(
    ("level", "weights"),
    [("token", [[1.5, 0.5, 1.0], [1.1, 1.2], [1.5]]), ("sequence", [[1.0] * 3, [1.32] * 2, [1.5]])],
)
def test_importance_is_truncated(level: Any, weights: list[list[float]]) -> None:
    found, report = corrected(old_policy="recomputed", rollout_is=level, rollout_is_threshold=1.5)
    for row, own in zip(found, weights, strict=True):
        assert row.importance is not None
        assert trained(row, row.importance) == pytest.approx(own)
    assert (report["rejected_tokens"], report["rows_rejected"], report["rejected_share"]) == (0, 0, 0.0)
    every = [weight for own in weights for weight in own]
    assert report["rollout_is_mean"] == pytest.approx(sum(every) / 6)


# (threshold, which tokens are left)
LEFT: dict[Rejection, tuple[float, list[list[int]]]] = {
    "token_k1": (2.5, [[1, 1, 1], [1, 1], [0]]),
    "token_k2": (0.2, [[0, 0, 1], [1, 1], [0]]),
    "token_k3": (0.25, [[0, 1, 1], [1, 1], [0]]),
    "seq_sum_k1": (1.3, [[1, 1, 1], [0, 0], [0]]),
    "seq_sum_k2": (0.3, [[0, 0, 0], [1, 1], [0]]),
    "seq_sum_k3": (0.55, [[1, 1, 1], [1, 1], [0]]),
    "seq_mean_k1": (1.3, [[1, 1, 1], [1, 1], [0]]),
    "seq_mean_k2": (0.1, [[0, 0, 0], [1, 1], [0]]),
    "seq_mean_k3": (0.164, [[0, 0, 0], [1, 1], [0]]),
    "seq_max_k2": (0.5, [[1, 1, 1], [1, 1], [0]]),
    "seq_max_k3": (0.25, [[0, 0, 0], [1, 1], [0]]),
}


@pytest.mark.parametrize("how", get_args(Rejection))
def test_what_is_rejected_is_masked_out_and_counted(how: Rejection) -> None:
    threshold, left = LEFT[how]
    found, report = corrected(rollout_rs=how, rollout_rs_threshold=threshold)
    bits = {
        row.rollout: trained(before, row.mask) for row in found for before in rows()[0] if before.rollout == row.rollout
    }
    assert bits == {f"r{n}": own for n, own in enumerate(left) if any(own)}
    rejected = sum(own.count(0) for own in left)
    assert (report["rejected_tokens"], report["rejected_share"]) == (rejected, pytest.approx(rejected / 6))
    assert report["rows_touched"] == sum(0 in own for own in left)
    assert report["rows_rejected"] == sum(1 not in own for own in left)


def test_agreement_is_measured_before_anything_is_rejected() -> None:
    _, report = corrected(rollout_rs="token_k1", rollout_rs_threshold=1.01)
    gaps = [abs(math.log(ratio)) for own in RATIOS for ratio in own]
    assert report["logprob_agreement"] == pytest.approx({"mean": sum(gaps) / 6, "max": math.log(4), "tokens": 6})


def test_everything_may_be_rejected() -> None:
    found, report = corrected(rollout_rs="seq_max_k2", rollout_rs_threshold=1e-6)
    assert (found, report["rejected_share"], report["rows_rejected"]) == ([], 1.0, 3)
