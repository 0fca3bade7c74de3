"""O25: a row holds the ids that were sampled, not those that an encoder would make of their text."""

from tests.support.calls import Recording
from training.rows import build_rows

HE, LLO, HELLO, USER = 10, 11, 12, 1


def test_o25_row_holds_the_sampled_ids_and_goes_on_from_them() -> None:
    rec = Recording()
    rec.call(None, [USER], [HE, LLO])
    rec.call(0, [USER], [HELLO])
    ((row,), _) = build_rows(rec.calls, max_row_tokens=100)
    assert row.ids == [USER, HE, LLO, USER, HELLO]
    assert row.mask == [0, 1, 1, 0, 1]


def test_o25_a_prompt_that_spells_it_otherwise_is_context_of_another_row() -> None:
    rec = Recording()
    rec.call(None, [USER], [HE, LLO])
    rec.call(0, [HELLO, USER], [HE], keep=1)
    first, second = build_rows(rec.calls, max_row_tokens=100)[0]
    assert (first.ids, first.mask) == ([USER, HE, LLO], [0, 1, 1])
    assert (second.ids, second.mask) == ([USER, HELLO, USER, HE], [0, 0, 0, 1])
