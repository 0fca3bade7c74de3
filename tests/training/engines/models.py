"""Small random Qwen3 folders for the engine tests."""

from pathlib import Path

import torch
from transformers import Qwen3Config
from transformers import Qwen3ForCausalLM

VOCAB = 512


def save_model(folder: Path, seed: int, *, hidden: int = 64, tied: bool = False) -> Path:
    """Untied unless told; random weights wide enough that two seeds give very different logprobs."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=tied,
        initializer_range=0.1,
        pad_token_id=0,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def ids(count: int, seed: int) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCAB, (count,), generator=generator).tolist()
