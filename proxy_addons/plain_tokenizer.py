"""A model's tokenizer as `renderers` asks for it, without the layers that `transformers` puts around each call.

Most of what a renderer encodes is short (a tool's result, its own "assistant\\n"), and it asks before each text whether
character offsets can be had: with `transformers`' own object three quarters of an extension's time went there.
"""

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
        self.decode = tokenizer.decode
        self.convert_tokens_to_ids = tokenizer.convert_tokens_to_ids
        self._core = tokenizer.backend_tokenizer
        self._core.encode_special_tokens = True
        self._short = lru_cache(maxsize=512)(self._read)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The ids of `text`."""
        return list(self._encoded(text)[0])

    def __call__(
        self, text: str, add_special_tokens: bool = False, return_offsets_mapping: bool = True
    ) -> dict[str, list[Any]]:
        """The ids of `text` and the span of characters that each stands for."""
        ids, offsets = self._encoded(text)
        return {"input_ids": list(ids), "offset_mapping": list(offsets)}

    def _encoded(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        return self._short(text) if len(text) <= SHORT_TEXT else self._read(text)

    def _read(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._core.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets
