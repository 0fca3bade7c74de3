from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from renderers.base import OffsetTokenizer
from transformers import AutoTokenizer

from proxy_addons.plain_tokenizer import SHORT_TEXT
from proxy_addons.plain_tokenizer import PlainTokenizer


@pytest.fixture(scope="module")
def both(toy_model: Path) -> tuple[PlainTokenizer, Any]:
    tokenizer = AutoTokenizer.from_pretrained(str(toy_model), split_special_tokens=True)
    return PlainTokenizer(tokenizer), tokenizer


def test_it_is_what_the_renderers_ask_for(both: tuple[PlainTokenizer, Any]) -> None:
    assert isinstance(both[0], OffsetTokenizer)


@given(text=st.text() | st.sampled_from(["<|im_end|>", "a <tool_call> b", "assistant\n", "é" * (SHORT_TEXT + 1)]))
def test_ids_and_offsets_are_those_of_transformers(both: tuple[PlainTokenizer, Any], text: str) -> None:
    plain, tokenizer = both
    expected = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    for _ in range(2):  # read, and remembered
        got = plain(text, add_special_tokens=False, return_offsets_mapping=True)
        assert got["input_ids"] == expected["input_ids"]
        assert got["offset_mapping"] == expected["offset_mapping"]
        assert plain.encode(text, add_special_tokens=False) == expected["input_ids"]
        got["input_ids"].append(-1)  # what was given away is the caller's


@given(text=st.text() | st.sampled_from(["<|im_end|>", " a , b .", "assistant\n"]), skip=st.booleans())
def test_texts_are_those_of_transformers(both: tuple[PlainTokenizer, Any], text: str, skip: bool) -> None:
    plain, tokenizer = both
    ids = [*tokenizer.encode(text, add_special_tokens=False), *tokenizer.convert_tokens_to_ids(["<|im_end|>"])]
    for some in (ids, ids[:-1], ids[:1], ids[-1]):
        assert plain.decode(some, skip_special_tokens=skip) == tokenizer.decode(some, skip_special_tokens=skip)
