"""O29: only the new tail is tokenised, and in its context: it is the tail of the full render, or the call branches."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers
from tokenizers import trainers
from transformers import PreTrainedTokenizerFast

from proxy_addons.chain import Trajectory
from proxy_addons.conversation import Message
from proxy_addons.conversation import Request
from proxy_addons.rendering import Rendering
from proxy_addons.rendering import load_rendering
from tests.support.toy_model import SPECIAL
from tests.support.toy_model import make_plain_model
from tests.support.toy_model import make_toy_model

ALPHABET = [chr(code) for code in range(32, 127)] + ["\n", "▁"]
TEXT = ["The cat.\n\nThe dog.\n\n", "user The", "assistant The"] * 8

# No control token between the turns: a merge can lie over any boundary.
WORDS = """{% for m in messages %}{{ m.role }}:
{{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant:
{% endif %}"""


def dummy_prefix(folder: Path) -> Path:
    """A tokenizer in the manner of SentencePiece: each text gets a space at its front, and `\\n\\n` is one token."""
    make_toy_model(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always", split=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(SPECIAL), initial_alphabet=ALPHABET, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.add_special_tokens({"additional_special_tokens": list(SPECIAL[1:])})
    fast.save_pretrained(str(folder))
    return folder


def merging(folder: Path) -> Path:
    """Bytes and merges, `\\n\\n` among them, under a template of words only."""
    make_plain_model(folder, WORDS)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["\n\n"] * 8, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>")
    fast.save_pretrained(str(folder))
    (folder / "chat_template.jinja").write_text(WORDS)
    return folder


async def test_the_tokenizers_are_what_the_case_is_about(tmp_path: Path) -> None:
    prefix = load_rendering(dummy_prefix(tmp_path / "a")).tokenizer
    assert prefix.encode("The", add_special_tokens=False) == prefix.encode(" The", add_special_tokens=False)
    merge = load_rendering(merging(tmp_path / "b")).tokenizer
    assert len(merge.encode("\n\n")) == 1 < len(merge.encode("\n") + merge.encode("\n"))


NEW = {
    "user": (Message("user", "The dog."),),
    "newlines": (Message("user", "\n\nThe dog.\n\n"),),
    "tools": (Message("tool", "\nThe", tool_call_id="a"), Message("tool", "The\n", tool_call_id="b")),
    "mixed": (Message("tool", "The", tool_call_id="a"), Message("system", "\n"), Message("user", " The")),
}


@pytest.mark.parametrize("make", [make_toy_model, dummy_prefix])
@pytest.mark.parametrize("new", NEW)
async def test_o29_the_tail_is_that_of_the_full_render(tmp_path: Path, make: object, new: str) -> None:
    rendering: Rendering = load_rendering(make(tmp_path))  # type: ignore[operator]
    asked, reply = (Message("user", "The cat."),), Message("assistant", "The")
    trajectory = Trajectory(rendering)
    first = await trajectory.place(Request(asked))
    sampled = (*rendering.tokenizer.encode("The", add_special_tokens=False), rendering.stop_token_ids[0])
    trajectory.add(first, reply, 0, sampled)
    second = await trajectory.place(Request((*asked, reply, *NEW[new])))
    assert second.whole_prefix
    assert second.prompt_ids[: second.prefix_len].tolist() == [*first.prompt_ids.tolist(), *sampled]
    whole, _ = rendering.render((*asked, reply, *NEW[new]), ())
    assert second.delta_ids.tolist() == whole[-len(second.delta_ids) :].tolist()


@pytest.mark.parametrize(("said", "keeps"), [("The", True), ("The\n", False)])
async def test_o29_a_merge_over_the_boundary_branches(tmp_path: Path, said: str, keeps: bool) -> None:
    """The policy stopped after a newline, and the template writes another: in context the two are one token."""
    rendering = load_rendering(merging(tmp_path))
    asked, reply, more = Message("user", "go"), Message("assistant", said), Message("user", "on")
    trajectory = Trajectory(rendering)
    first = await trajectory.place(Request((asked,)))
    sampled = tuple(rendering.tokenizer.encode(said))
    trajectory.add(first, reply, 0, sampled)
    second = await trajectory.place(Request((asked, reply, more)))
    assert second.prompt_ids.tolist() == rendering.render((asked, reply, more), ())[0].tolist()
    assert second.whole_prefix == keeps
    assert second.findings == (() if keeps else ("prefix_break",))
    # Shared up to the token that the merge swallowed, and not one more.
    assert second.prefix_len == len(first.prompt_ids) + len(sampled) - (0 if keeps else 1)
