"""The overlap of texts against its definition, and that the index finds what counting every pair finds."""

import random

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tasks.curate.alike import Index
from tasks.curate.alike import overlap
from tasks.curate.alike import pieces


def test_case_and_space_do_not_count_and_texts_are_told_apart() -> None:
    assert pieces("Read  the\nFILE") == pieces("read the file")
    assert overlap(pieces("abcdef"), pieces("abcdeg")) == 1 / 3
    assert overlap(pieces("abcdef", "uvwxyz"), pieces("uvwxyz", "abcdef")) == 0
    assert pieces("abc") == {"0abc"}


@given(st.text(), st.text())
@settings(max_examples=50, deadline=None)
def test_overlap_is_a_share(first: str, second: str) -> None:
    a, b = pieces(first), pieces(second)
    assert 0 <= overlap(a, b) == overlap(b, a) <= 1
    assert overlap(a, a) == 1


def test_the_index_finds_what_comparing_all_pairs_finds() -> None:
    rng = random.Random(3)
    words = [f"word{number}" for number in range(40)]
    base = rng.sample(words, 20)
    texts = {f"t{number:02}": " ".join([*base[: rng.randint(10, 20)], *rng.sample(words, 3)]) for number in range(60)}
    index, known = Index(0.8), dict[str, frozenset[str]]()
    alike = 0
    for name, text in texts.items():
        found = pieces(text)
        best = max(((overlap(found, other), other_name) for other_name, other in known.items()), default=(0.0, ""))
        near = index.nearest(found)
        assert (near[1] if near else 0.0) == (best[0] if best[0] >= 0.8 else 0.0)
        alike += near is not None
        index.add(name, found)
        known[name] = found
    assert 10 < alike < 60
