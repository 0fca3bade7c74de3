"""A model folder with a tokenizer and a template but no weights: enough for the proxy. Bytes are tokens, plus a few
merges, so that text can be encoded in more than one way."""

import json
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers
from tokenizers import trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)


VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def make_toy_model(folder: Path, special: tuple[str, ...] = SPECIAL) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["hello hello hello the command file answer write read"] * 4, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.add_special_tokens({"additional_special_tokens": list(special[1:])})
    fast.save_pretrained(str(folder))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (folder / "renderer.json").write_text(json.dumps({"name": "qwen3", "thinking_retention": "all"}))
    return folder


def make_seeing_model(folder: Path) -> Path:
    """The same in the shape of Qwen3-VL: it is shown images."""
    make_toy_model(folder, (*SPECIAL, *VISION))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_vl"}))
    (folder / "renderer.json").unlink()
    sizes = {"patch_size": 16, "merge_size": 2, "size": {"shortest_edge": 1024, "longest_edge": 65536}}
    (folder / "preprocessor_config.json").write_text(json.dumps(sizes))
    return folder


def make_plain_model(folder: Path, template: str) -> Path:
    """A model that no typed renderer knows: all there is to go by is its chat template."""
    make_toy_model(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "plain"}))
    (folder / "renderer.json").unlink()
    (folder / "chat_template.jinja").write_text(template)
    return folder
