"""Which tasks of a benchmark a run trains on (`benchmark.train_share`), so that none of them gives a held-out one away.

A task's side hangs on the set and the share, not on the seed or on what can run on this machine; what a smaller share
trains on, a larger one does too.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from tasks.adapters import Item
from tasks.curate.alike import overlap
from tasks.curate.alike import pieces

ALIKE = 0.8
"""From this overlap of their instructions on two tasks are kin; the default of a curation's `likeness`."""


def divided(items: Sequence[Item], train_share: float) -> list[Item]:
    """The items, about that share of their families with the split `train`. A family are those that have a mark in
    common (`Item.kin`) or read alike, directly or by others; it is drawn by the digest of its first id."""
    family = {item.id: item.id for item in items}

    def first(name: str) -> str:
        while family[name] != name:
            name = family[name]
        return name

    def join(one: str, other: str) -> None:
        low, high = sorted((first(one), first(other)))
        family[high] = low

    bearer: dict[str, str] = {}
    for item in items:
        for mark in item.kin:
            join(item.id, bearer.setdefault(mark, item.id))
    texts = [(item.id, pieces(item.instruction)) for item in items]
    for (one, text), (other, another) in combinations(texts, 2):
        if overlap(text, another) >= ALIKE:
            join(one, other)
    return [replace(item, split="train") if _draw(first(item.id)) < train_share else item for item in items]


def _draw(name: str) -> float:
    """A number from 0 to 1 that is always the same for `name`."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64
