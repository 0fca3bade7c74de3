from pathlib import Path
from typing import Any

import pytest
import torch
from renderers import Qwen3RendererConfig
from renderers import create_renderer
from transformers import AutoModelForCausalLM
from transformers import AutoTokenizer
from transformers import PreTrainedTokenizerFast

from training.tiny_model import SPECIAL_TOKENS
from training.tiny_model import make_model
from training.tiny_model import make_tokenizer
from training.tiny_model import save

TEXTS = ["Write the number in data/river-fox.txt to answer.txt."] * 20

CONVERSATION: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Read data/river-fox.txt"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "id": "a", "function": {"name": "Bash", "arguments": {"command": "cat x"}}},
            {"type": "function", "id": "b", "function": {"name": "Bash", "arguments": {"command": "ls"}}},
        ],
    },
    {"role": "tool", "content": "417", "tool_call_id": "a"},
    {"role": "tool", "content": "x", "tool_call_id": "b"},
]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "Bash", "description": "run", "parameters": {"type": "object"}}}
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer(TEXTS, 400)


def test_specials_are_single_tokens_marked_special(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = [tokenizer.encode(token, add_special_tokens=False) for token in SPECIAL_TOKENS]
    assert ids == [[i] for i in range(len(SPECIAL_TOKENS))]
    assert set(tokenizer.all_special_ids) == {i[0] for i in ids}
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


@pytest.mark.parametrize("text", ["river 417, fox\n\n  x", "größe → 世界 🙂", 'sed -i "s/a=.*/a=1/"', "<tool_call>"])
def test_any_text_survives(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_digits_stand_alone_and_known_words_are_whole(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer.encode("4170", add_special_tokens=False)) == 4
    assert len(tokenizer.encode("river", add_special_tokens=False)) == 1


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_the_template_agrees_with_the_renderer(
    tokenizer: PreTrainedTokenizerFast, tools: list[Any] | None, length: int
) -> None:
    renderer = create_renderer(tokenizer, Qwen3RendererConfig())
    messages = CONVERSATION[:length]
    ours = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    assert ours == tokenizer.decode(renderer.render_ids(messages, tools=tools, add_generation_prompt=True))


def test_a_saved_model_is_the_same_when_loaded(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    model = make_model(tokenizer, seed=1, layers=2, hidden=64, heads=2, head_dim=32)
    save(model, tokenizer, tmp_path)
    ids = torch.tensor([AutoTokenizer.from_pretrained(tmp_path).encode("river 417")])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (loaded.config.model_type, loaded.config.tie_word_embeddings) == ("qwen3", False)
    assert loaded.config.max_position_embeddings >= 8192
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    assert len(tokenizer) <= loaded.config.vocab_size


def test_equal_seeds_give_equal_weights(tokenizer: PreTrainedTokenizerFast) -> None:
    models = [make_model(tokenizer, seed, layers=1, hidden=32, heads=2, head_dim=32) for seed in (1, 1, 2)]
    first, again, other = (model.lm_head.weight for model in models)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_an_untrained_head_passes_on_what_it_attends_to(tokenizer: PreTrainedTokenizerFast) -> None:
    """Value then output is half a projection, and an input token's likeliest output is itself."""
    model = make_model(tokenizer, seed=0, layers=1, hidden=64, heads=2, head_dim=32)
    attention = model.model.layers[0].self_attn
    passed = attention.o_proj.weight[:, :32] @ attention.v_proj.weight[:32]
    torch.testing.assert_close(passed @ passed, passed * 0.5)
    likeness = model.model.embed_tokens.weight @ model.lm_head.weight.T
    assert torch.equal(likeness.argmax(dim=1), torch.arange(len(likeness)))
