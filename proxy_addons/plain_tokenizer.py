"""A model's tokenizer as `renderers` asks for it, without the layers that `transformers` puts around each call.

Most of what a renderer encodes is short (a tool's result, its own "assistant\\n"), and it asks before each text whether
character offsets can be had: with `transformers`' own object three quarters of an extension's time went there.
"""

from collections.abc import Iterable
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

SHORT_TEXT = 32


class PlainTokenizer:
    """The surface of `renderers.base.OffsetTokenizer`. A special token's name in a text is split like any text."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is a fast one of `transformers`, loaded with `split_special_tokens=True`."""
        self.name_or_path: str = tokenizer.name_or_path
        self.unk_token_id: int | None = tokenizer.unk_token_id
        self.eos_token_id: int | None = tokenizer.eos_token_id
        self.convert_tokens_to_ids = tokenizer.convert_tokens_to_ids
        self._core = tokenizer.backend_tokenizer
        self._core.encode_special_tokens = True
        self._tidy = tokenizer.decode if tokenizer.clean_up_tokenization_spaces else None
        self._short = lru_cache(maxsize=512)(self._read)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The ids of `text`."""
        if len(text) <= SHORT_TEXT:
            ids: list[int] = self._short(text).ids  # each time a list of its own
        else:
            (encoding,) = self._core.encode_batch_fast([text], add_special_tokens=False)  # no offsets, a fifth faster
            ids = encoding.ids
        return ids

    def __call__(
        self, text: str, add_special_tokens: bool = False, return_offsets_mapping: bool = True
    ) -> dict[str, list[Any]]:
        """The ids of `text` and the span of characters that each stands for."""
        encoding = self._short(text) if len(text) <= SHORT_TEXT else self._read(text)
        return {"input_ids": encoding.ids, "offset_mapping": encoding.offsets}

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of `token_ids`."""
        if self._tidy is not None:  # spaces to take out again, which only `transformers` knows how to
            return str(self._tidy(token_ids, skip_special_tokens=skip_special_tokens))
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return str(self._core.decode(ids, skip_special_tokens=skip_special_tokens))

    def _read(self, text: str) -> Any:
        """`text` as an `Encoding` of `tokenizers`."""
        return self._core.encode(text, add_special_tokens=False)


class IdsOnly:
    """A `PlainTokenizer` that tells no character offsets, so that a renderer does not look token by token for the text
    that each is of. `met` says whether a text became one of the `control` tokens, and offsets are needed after all."""

    def __init__(self, plain: PlainTokenizer, control: Iterable[int]) -> None:
        self.met = False
        self.name_or_path = plain.name_or_path
        self.unk_token_id, self.eos_token_id = plain.unk_token_id, plain.eos_token_id
        self.decode, self.convert_tokens_to_ids = plain.decode, plain.convert_tokens_to_ids
        self._plain = plain
        self._control = frozenset(control)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The ids of `text`."""
        ids = self._plain.encode(text)
        self.met = self.met or not self._control.isdisjoint(ids)
        return ids
