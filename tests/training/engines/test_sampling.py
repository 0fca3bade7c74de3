import math
import random

import pytest
import torch

from training.engines._sampling import sample

LOGITS = torch.tensor([0.0, 1.0, 2.0, -3.0])


def draw(temperature: float, top_p: float, times: int = 4000) -> dict[int, tuple[float, float]]:
    """For each token that came: how often, and the logprob it was given."""
    rng = random.Random(0)
    rows = LOGITS.expand(times, -1)
    tokens, logprobs = sample(rows, [temperature] * times, [top_p] * times, [rng.random() for _ in range(times)])
    return {token: (tokens.count(token) / times, logprobs[tokens.index(token)]) for token in set(tokens)}


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.8)])
def test_tokens_come_as_often_as_their_logprob_says(temperature: float, top_p: float) -> None:
    drawn = draw(temperature, top_p)
    for share, logprob in drawn.values():
        assert share == pytest.approx(math.exp(logprob), abs=0.03)
    assert sum(math.exp(logprob) for _, logprob in drawn.values()) == pytest.approx(1, abs=0.02)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    assert set(draw(1.0, 0.6)) == {2}
    assert set(draw(1.0, 0.8)) == {1, 2}


def test_temperature_0_is_greedy_with_the_logprob_at_1_and_without_top_p() -> None:
    tokens, logprobs = sample(LOGITS[None], [0.0], [0.1], [0.9])
    assert tokens == [2]
    assert logprobs == pytest.approx([float(LOGITS.log_softmax(-1)[2])])


def test_rows_have_their_own_parameters() -> None:
    tokens, logprobs = sample(LOGITS.expand(3, -1), [0.0, 1.0, 1.0], [1.0, 0.6, 1.0], [0.0, 0.99, 0.0])
    assert tokens == [2, 2, 0]
    assert logprobs[1] == pytest.approx(0.0)


def test_no_impossible_token_at_the_ends_of_chance() -> None:
    row = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]])
    assert sample(row, [1.0], [1.0], [0.0])[0] == [1]
    assert sample(row, [1.0], [1.0], [1 - 2**-53])[0] == [2]
