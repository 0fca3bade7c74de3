from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.training.engines.models import ids
from tests.training.engines.models import save_model
from training.engines._decoder import load_model
from training.engines._kv import PrefixCache
from training.engines._kv import Sequence
from training.engines._kv import Span


def new() -> Sequence:
    return Sequence(layers=1, kv_heads=1, head_dim=2, device="cpu")


def filled(tokens: list[int]) -> Sequence:
    sequence = new()
    sequence.reserve(len(tokens))
    sequence.ids[: len(tokens)] = tokens
    sequence.kv[..., : len(tokens), :] = torch.tensor(tokens, dtype=torch.float32)[:, None]
    sequence.length = len(tokens)
    return sequence


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def test_packed_attention_equals_the_plain_forward(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", 1)
    packed, plain = load_model(folder, "cpu"), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompts = [ids(150, 1), ids(1, 2), ids(40, 3)]
    steps = [[prompts[0][:90], prompts[1], prompts[2][:39]], [prompts[0][90:], [7], prompts[2][39:]]]
    sequences = [Sequence(3, 2, 32, "cpu") for _ in prompts]
    with torch.inference_mode():
        for step in steps:
            spans: list[Span] = []
            row: list[int] = []
            positions: list[int] = []
            for sequence, tokens in zip(sequences, step, strict=True):
                sequence.reserve(sequence.length + len(tokens))
                spans.append(Span.at(len(row), len(tokens), sequence))
                positions += range(sequence.length, sequence.length + len(tokens))
                row += tokens
            out = packed(torch.tensor([row]), position_ids=torch.tensor([positions]), use_cache=False, spans=spans)
            for span in spans:
                span.sequence.length += span.count
        for span, prompt in zip(spans, [prompts[0], [*prompts[1], 7], prompts[2]], strict=True):
            wanted = plain(torch.tensor([prompt]), use_cache=False).logits[0, -1].log_softmax(-1)
            got = out.logits[0, span.start + span.count - 1].log_softmax(-1)
            assert torch.allclose(got, wanted, atol=1e-5, rtol=0)


def test_sequence_keeps_its_content_as_it_grows() -> None:
    sequence = filled([3, 4, 5])
    sequence.reserve(5000)
    assert sequence.capacity >= 5000
    assert sequence.ids[:3].tolist() == [3, 4, 5]
    assert sequence.kv[0, 1, 0, :3, 0].tolist() == [3, 4, 5]


def test_extended_sequence_is_handed_over() -> None:
    cache = PrefixCache(new, 10_000)
    chain = filled([1, 2, 3])
    cache.keep(chain)
    assert cache.open(array([1, 2, 3, 4]), []) is chain
    assert cache.open(array([1, 2, 3, 4]), []).length == 0


def test_branch_copies_and_leaves_the_source() -> None:
    cache = PrefixCache(new, 10_000)
    chain = filled([1, 2, 3])
    cache.keep(chain)
    branch = cache.open(array([1, 2, 9, 9]), [])
    assert (branch.length, branch.ids[:2].tolist(), branch.kv[0, 0, 0, :2, 1].tolist()) == (2, [1, 2], [1, 2])
    assert cache.open(array([1, 2, 3, 4]), []) is chain


def test_running_sequence_is_a_source_too() -> None:
    assert PrefixCache(new, 10_000).open(array([5, 6, 7]), [filled([5, 6])]).length == 2


def test_last_prompt_token_is_always_computed() -> None:
    cache = PrefixCache(new, 10_000)
    cache.keep(filled([1, 2, 3]))
    assert cache.open(array([1, 2, 3]), []).length == 2


@pytest.mark.parametrize(("budget", "kept"), [(512, [2]), (1024, [1, 2])])
def test_least_recently_used_goes_first(budget: int, kept: list[int]) -> None:
    cache = PrefixCache(new, budget)
    for first in (0, 1, 2):
        cache.keep(filled([first, 8]))
    assert [first for first in (0, 1, 2) if cache.open(array([first, 8, 9]), []).length] == kept


def test_cleared_cache_knows_nothing() -> None:
    cache = PrefixCache(new, 10_000)
    cache.keep(filled([1, 2]))
    cache.clear()
    assert cache.open(array([1, 2, 3]), []).length == 0
