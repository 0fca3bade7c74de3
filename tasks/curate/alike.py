"""Which tasks read alike: MinHash finds the candidates, the exact overlap of their texts decides.

Texts are compared as sets of overlapping pieces of five characters, without case and space; the overlap is Jaccard's:
pieces that both have, divided by pieces that either has.
"""

from collections.abc import Iterable

from datasketch import MinHash
from datasketch import MinHashLSH

_PIECE = 5
_PERMUTATIONS = 128
_MISSED, _FALSE = 0.9, 0.1
"""What a candidate that is missed weighs in the choice of bands, and what one that is none; the latter costs a look."""


def pieces(*texts: str) -> frozenset[str]:
    """The pieces of `texts`, those of one told apart from those of another."""
    return frozenset(
        f"{number}{text[start : start + _PIECE]}"
        for number, text in enumerate(" ".join(text.lower().split()) for text in texts)
        for start in range(max(1, len(text) - _PIECE + 1))
    )


def overlap(first: frozenset[str], second: frozenset[str]) -> float:
    """Jaccard's coefficient."""
    return len(first & second) / len(first | second)


class Index:
    """Texts by name, and which of them another one is like."""

    def __init__(self, threshold: float) -> None:
        """`threshold`: the overlap in 0 … 1 from which on two texts are alike."""
        self._threshold = threshold
        self._hashes = MinHashLSH(threshold=threshold, num_perm=_PERMUTATIONS, weights=(_FALSE, _MISSED))
        self._pieces: dict[str, frozenset[str]] = {}

    def add(self, name: str, text: frozenset[str]) -> None:
        """Remember `text` by `name`, which is new."""
        self._hashes.insert(name, _hash(text))
        self._pieces[name] = text

    def nearest(self, text: frozenset[str]) -> tuple[str, float] | None:
        """The text that is most like this one and its overlap; None if none is alike. Of equals the first by name."""
        found = [(overlap(text, self._pieces[name]), name) for name in self._hashes.query(_hash(text))]
        best = min(found, key=lambda pair: (-pair[0], pair[1]), default=None)
        return (best[1], best[0]) if best and best[0] >= self._threshold else None


def _hash(text: Iterable[str]) -> MinHash:
    found = MinHash(num_perm=_PERMUTATIONS, seed=1)
    found.update_batch(sorted(piece.encode() for piece in text))
    return found
