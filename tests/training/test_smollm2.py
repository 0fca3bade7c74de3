from pathlib import Path
from typing import Any

import pytest
import torch
from renderers import Qwen3RendererConfig
from renderers import create_renderer
from safetensors.torch import load_file
from tokenizers import AddedToken
from tokenizers import Tokenizer
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers
from tokenizers import trainers
from transformers import AutoModelForCausalLM
from transformers import LlamaConfig
from transformers import LlamaForCausalLM
from transformers import PreTrainedTokenizerFast

from proxy_addons.errors import ConfigError
from training.smollm2 import convert
from training.smollm2 import make_tokenizer
from training.smollm2 import with_tool_tokens


@pytest.fixture(scope="module")
def read() -> PreTrainedTokenizerFast:
    """As transformers reads the package's file: ChatML tokens, digits merged, wrong end of sequence."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    chatml = [AddedToken(t, normalized=False, special=True) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=chatml,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(["the tool call is 1234 and the response is 1234"] * 30, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_start|>")


@pytest.fixture(scope="module")
def tokenizer(read: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    assert len(read("1234").input_ids) < 4
    return make_tokenizer(read)


def test_a_digit_is_always_a_token(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_ids_to_tokens(tokenizer("1234").input_ids) == ["1", "2", "3", "4"]


def test_a_tool_call_is_written_and_read_back(tokenizer: PreTrainedTokenizerFast) -> None:
    renderer = create_renderer(tokenizer, Qwen3RendererConfig(thinking_retention="all"))
    text = '<tool_call>\n{"name": "Bash", "arguments": {"command": "cat 12"}}\n</tool_call><|im_end|>'
    parsed = renderer.parse_response(tokenizer(text).input_ids)
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("Bash", {"command": "cat 12"})]
    assert renderer.get_stop_token_ids()[0] == tokenizer.eos_token_id


def test_what_the_model_knew_it_still_knows_and_its_embeddings_are_apart(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    known = len(tokenizer) - 6  # without the tokens that ChatML has not
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=known, tie_word_embeddings=True, **shape)).eval()
    model.tie_weights()
    ids = torch.tensor([tokenizer("the tool call is 12").input_ids])
    with torch.no_grad():
        before = model(ids).logits
        changed = with_tool_tokens(model, tokenizer)
        after = changed(ids).logits
        changed.save_pretrained(tmp_path)
    torch.testing.assert_close(after[..., :known], before)
    # Each stage by itself: a difference of logits after a reload alone does not say which of them was at fault.
    saved = load_file(tmp_path / "model.safetensors")
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for name, tensor in changed.state_dict().items():
        torch.testing.assert_close(saved[name], tensor, rtol=0, atol=0, msg=f"{name} as saved")
        torch.testing.assert_close(again.state_dict()[name], tensor, rtol=0, atol=0, msg=f"{name} as loaded")
    assert after.shape[-1] % 64 == 0 and after.shape[-1] >= len(tokenizer)
    assert again.lm_head.weight.data_ptr() != again.model.embed_tokens.weight.data_ptr()
    assert again.generation_config.eos_token_id == tokenizer.eos_token_id


def test_a_package_without_weights_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds 0 \.gguf files, not one; run `make model-smollm2`"):
        convert(tmp_path, tmp_path / "out")
