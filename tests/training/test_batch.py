"""Rows → nested tensors: no padding, and everything aligned."""

from dataclasses import replace

import pytest
import torch

from training.batch import rl_batch
from training.batch import sft_batch
from training.batch import share
from training.rows import Row

LONG = Row("a", "g", [1, 2, 3, 4, 5], [0, 0, 1, 0, 1], [0.0, 0.0, -0.5, 0.0, -0.25], (0, 1), (0, 0))
SHORT = Row("b", "g", [6, 7], [0, 1], [0.0, -1.0], (0,), (0,))


def lists(tensor: torch.Tensor) -> list[list[float]]:
    return [part.tolist() for part in tensor.unbind()]


def test_a_row_is_split_before_its_first_trained_token() -> None:
    batch = rl_batch([LONG, SHORT], {"a": 2.0, "b": -1.0})
    assert lists(batch["input_ids"]) == [[1, 2, 3, 4, 5], [6, 7]]
    assert lists(batch["position_ids"]) == [[0, 1, 2, 3, 4], [0, 1]]
    assert lists(batch["prompts"]) == [[1, 2], [6]]
    assert lists(batch["responses"]) == [[3, 4, 5], [7]]
    assert lists(batch["response_mask"]) == lists(batch["loss_mask"]) == [[1, 0, 1], [1]]
    assert lists(batch["old_log_probs"]) == [[-0.5, 0.0, -0.25], [-1.0]]
    assert lists(batch["advantages"]) == [[2.0, 0.0, 2.0], [-1.0]]


def test_sft_masks_run_along_the_whole_row() -> None:
    assert lists(sft_batch([LONG, SHORT])["loss_mask"]) == [[0, 0, 1, 0, 1], [0, 1]]


def test_one_temperature_is_a_number_and_several_are_a_tensor() -> None:
    warm = Row("c", "g", [6, 7], [0, 1], [0.0, -1.0], (0,), (0,), temperature=0.5)
    assert sft_batch([LONG, SHORT])["temperature"] == 1.0
    assert sft_batch([LONG, warm])["temperature"].tolist() == [1.0, 0.5]


def test_a_tokens_weight_is_its_rows_times_its_importance() -> None:
    rows = [replace(LONG, importance=[0.0, 0.0, 2.0, 0.0, 0.5]), SHORT]
    assert lists(rl_batch(rows, {"a": 1.0, "b": 1.0})["rollout_is_weights"]) == [[2.0, 0.0, 0.5], [1.0]]
    by_row = rl_batch(rows, {"a": 1.0, "b": 1.0}, "row")["rollout_is_weights"]
    assert lists(by_row) == [pytest.approx([1.5, 0.0, 0.375]), pytest.approx([1.5])]


def test_without_a_reference_there_is_no_such_field() -> None:
    assert "ref_log_prob" not in rl_batch([LONG, SHORT], {"a": 1.0, "b": 1.0})


@pytest.mark.timeout(180)  # veRL takes seconds to import
def test_ranks_get_as_many_rows_each_and_every_row_is_trained_once() -> None:
    rows = [LONG, SHORT, replace(LONG, ids=[9, 9, 9, 9, 9])]
    batch = rl_batch(rows, {"a": 1.0, "b": 1.0})
    one, two = (share(batch, rank, 2) for rank in range(2))
    assert lists(one["input_ids"]) == [list(LONG.ids), [9] * 5]
    assert lists(two["input_ids"]) == [list(SHORT.ids)] * 2
    assert lists(two["response_mask"]) == lists(two["loss_mask"]) == [[1], [0]]
    assert lists(one["response_mask"]) == [[1, 0, 1], [1, 0, 1]]
    assert share(batch, 0, 1) is batch
