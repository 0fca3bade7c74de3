"""Keys and values of sequences, reuse of their prefixes, and the attention that reads them.

Each sequence owns one growing buffer. A packed step holds tokens of many sequences in one row; `attend` splits the row
and lets each sequence look only at its own buffer, so lengths may differ without padding and results do not depend on
who else is in the step. A finished sequence stays as a prefix for later ones until the token budget is spent.
"""

from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from typing import cast

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

ATTENTION = "openforge_packed"
_BLOCK = 512  # buffers grow by whole blocks, so that a decoding sequence is not copied at each token


class Sequence:
    """Token ids with their keys and values: `kv` is [layers, 2, kv_heads, capacity, head_dim], valid to `length`."""

    def __init__(self, layers: int, kv_heads: int, head_dim: int, device: str) -> None:
        self.length = 0
        self.ids = np.empty(0, np.int32)
        self.kv = torch.empty(layers, 2, kv_heads, 0, head_dim, device=device)

    @property
    def capacity(self) -> int:
        return len(self.ids)

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` in all, keeping what is there."""
        if tokens <= self.capacity:
            return
        capacity = -(-max(tokens, self.capacity * 5 // 4) // _BLOCK) * _BLOCK
        layers, two, heads, _, dim = self.kv.shape
        kv = torch.empty(layers, two, heads, capacity, dim, device=self.kv.device)
        kv[:, :, :, : self.length] = self.kv[:, :, :, : self.length]
        ids = np.empty(capacity, np.int32)
        ids[: self.length] = self.ids[: self.length]
        self.kv, self.ids = kv, ids

    def common_prefix(self, ids: np.ndarray) -> int:
        """How many leading tokens of `ids` this sequence has keys and values for."""
        size = min(self.length, len(ids))
        differs = self.ids[:size] != ids[:size]
        return int(differs.argmax()) if differs.any() else size

    def copy_prefix(self, source: "Sequence", tokens: int) -> None:
        """Take over the first `tokens` of `source`."""
        self.reserve(tokens)
        self.ids[:tokens] = source.ids[:tokens]
        self.kv[:, :, :, :tokens] = source.kv[:, :, :, :tokens]
        self.length = tokens


class PrefixCache:
    """Finished sequences, oldest use first, at most `max_tokens` of buffer in all."""

    def __init__(self, new: Callable[[], Sequence], max_tokens: int) -> None:
        self._new = new
        self._max_tokens = max_tokens
        self._kept: list[Sequence] = []

    def open(self, ids: np.ndarray, live: Iterable[Sequence]) -> Sequence:
        """A sequence that starts with the longest known prefix of `ids`, leaving at least one token to compute.

        A kept sequence that `ids` only extends (the next call of a chain) is handed over; any other source, a running
        sequence included, is copied from, since others may still need it.
        """
        candidates = [*self._kept, *live]
        shared = [sequence.common_prefix(ids[:-1]) for sequence in candidates]
        best = max(range(len(shared)), key=shared.__getitem__, default=-1)
        if best < 0 or shared[best] == 0:
            return self._new()
        source = candidates[best]
        if best < len(self._kept):
            del self._kept[best]
            if shared[best] == source.length:
                return source
            self._kept.append(source)
        sequence = self._new()
        sequence.copy_prefix(source, shared[best])
        return sequence

    def keep(self, sequence: Sequence) -> None:
        """Offer `sequence` to later requests; forgets the least recently used beyond the budget."""
        self._kept.append(sequence)
        while self._kept and sum(kept.capacity for kept in self._kept) > self._max_tokens:
            del self._kept[0]

    def clear(self) -> None:
        self._kept.clear()


@dataclass
class Span:
    """`count` tokens of the packed row, from `start`, that extend `sequence`; `mask` is [count, length + count]."""

    sequence: Sequence
    start: int
    count: int
    mask: torch.Tensor | None

    @classmethod
    def at(cls, start: int, count: int, sequence: Sequence) -> "Span":
        past = sequence.length
        mask = None
        if count > 1:  # each new token sees the past and the new ones up to itself
            mask = torch.ones(count, past + count, dtype=torch.bool, device=sequence.kv.device).tril(past)
        return cls(sequence, start, count, mask)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    spans: list[Span],
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for a packed row, in the form transformers calls: q, k, v are [1, heads, tokens, head_dim]; the result
    is [1, tokens, heads, head_dim]. Writes the new keys and values into each sequence's buffer."""
    out = torch.empty_like(query)
    layer = cast(int, module.layer_idx)
    for span in spans:
        row = slice(span.start, span.start + span.count)
        end = span.sequence.length + span.count
        buffer = span.sequence.kv[layer]
        buffer[0, :, span.sequence.length : end] = key[0, :, row]
        buffer[1, :, span.sequence.length : end] = value[0, :, row]
        keys, values = buffer[:, None, :, :end].unbind()
        asked = query[:, :, row]
        if span.count == 1:  # query heads of one group as rows of one head: each key is read once, 3x faster at 6,000
            asked = asked.reshape(1, keys.shape[1], -1, keys.shape[-1])
        seen = scaled_dot_product_attention(
            asked, keys, values, attn_mask=span.mask, scale=scaling, enable_gqa=span.count > 1
        )
        out[:, :, row] = seen.reshape(1, -1, span.count, keys.shape[-1])
    return out.transpose(1, 2), None
