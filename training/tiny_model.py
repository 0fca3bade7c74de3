"""A Qwen3-shaped model of a few million parameters and its own tokenizer, for runs on a laptop's CPU.

Made from nothing, so that no weights need to be fetched; it speaks the ChatML/Hermes tool-call form of Qwen3. Words and
digits are whole tokens, because a small model learns to copy a word long before it learns to copy letters.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import AddedToken
from tokenizers import Regex
from tokenizers import Tokenizer
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers
from tokenizers import trainers
from transformers import PreTrainedTokenizerFast
from transformers import Qwen3Config
from transformers import Qwen3ForCausalLM

SPECIAL_TOKENS = (
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

MAX_POSITIONS = 16384

RENDERER = {"name": "qwen3", "thinking_retention": "all"}
"""`renderer.json` of a model with the template below, which keeps all of history: a conversation that only grows is one
chain."""

# A digit is always alone; a space joins the word or the signs behind it.
_PIECES = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"

CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' }}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within ' }}
{{- '<tool_call></tool_call> XML tags:\\n<tool_call>\\n' }}
{{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function or call %}
{%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def make_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on `texts`, with at most `vocab_size` tokens, specials included."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return with_template(core, MAX_POSITIONS)


def with_template(core: Tokenizer, max_length: int) -> PreTrainedTokenizerFast:
    """`core`, which has the special tokens, with our chat template; `max_length` in tokens."""
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS),
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def make_model(
    tokenizer: PreTrainedTokenizerFast, seed: int, layers: int, hidden: int, heads: int, head_dim: int
) -> Qwen3ForCausalLM:
    """An untrained fp32 model for `tokenizer`, started so that it copies. Equal arguments give equal weights."""
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=hidden,
        intermediate_size=hidden * 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=head_dim,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).float()
        _start_copying(model)
    return model


@torch.no_grad()
def _start_copying(model: Qwen3ForCausalLM) -> None:
    """Attention that finds like tokens and passes on what it finds, instead of noise.

    From noise, a small model needs a hundred times the data before a first head copies. So each head's output undoes
    its value projection, queries and keys start alike (above layer 0, which is left to find neighbours), attention
    starts sharp, and the output embedding starts as the input embedding.
    """
    embedding = model.model.embed_tokens.weight.normal_(0, 0.1)
    model.lm_head.weight.copy_(embedding * 0.2)
    for index, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        rows = attention.head_dim
        for start in range(0, attention.v_proj.out_features, rows):
            head = slice(start, start + rows)
            value = _orthonormal(model.config.hidden_size, rows)
            attention.v_proj.weight[head] = value.T
            attention.o_proj.weight[:, head] = value * 0.5
            if index > 0:
                likeness = _orthonormal(model.config.hidden_size, rows).T * 0.3
                attention.q_proj.weight[head] += likeness
                attention.k_proj.weight[head] += likeness
        attention.q_norm.weight.fill_(1.5)
        attention.k_norm.weight.fill_(1.5)


def _orthonormal(rows: int, columns: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(rows, columns))[0]


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a Hugging Face model folder: weights in the model's dtype, configuration and tokenizer."""
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
