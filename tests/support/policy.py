"""A very small policy on disk, and a learner of it."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers import Qwen3Config
from transformers import Qwen3ForCausalLM
from transformers import Qwen3MoeConfig
from transformers import Qwen3MoeForCausalLM

from training.cpu_platform import select_device
from training.job import TrainSettings
from training.rows import Row

if TYPE_CHECKING:
    from training.learner import Learner

VOCAB = 64


def save_policy(folder: Path, *, tied: bool = False, seed: int = 0) -> Path:
    """Write a Qwen3 of a few thousand weights with a file that stands for its tokenizer."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"stands": "for a tokenizer"}')
    return folder


def save_mixture(folder: Path) -> Path:
    """Write a Qwen3-MoE of a few thousand weights."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,  # type: ignore[call-arg]  # it reads it; its declared fields lack it
        intermediate_size=64,
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=512,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    return folder


def make_learner(folder: Path, **settings: Any) -> "Learner":
    """A learner on the CPU with one thread."""
    select_device("cpu")
    from training.learner import Learner

    return Learner(folder, TrainSettings(threads=1, device="cpu", **settings))


def whole(row: Row) -> Row:
    """The row with all of its tokens trained, for a learner scores no other."""
    return replace(row, mask=[0, *[1] * (len(row.ids) - 1)])


def hf_log_probs(folder: Path, ids: list[int], temperature: float = 1.0) -> list[float]:
    """What transformers says about `ids`; the first token gets 0.0."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        scores = (model(torch.tensor([ids])).logits[0, :-1] / temperature).log_softmax(-1)
    return [0.0, *scores.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()]
