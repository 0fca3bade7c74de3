"""O33: the limit of a turn is not the limit of a row; no turn of a long conversation is lost in silence."""

from tests.support.calls import Recording
from training.rows import build_rows

TURN_LIMIT = 8


def five_turns() -> Recording:
    rec = Recording()
    for turn in range(5):
        rec.call(turn - 1 if turn else None, [1] * 10, [2] * 6, sampling=f'{{"max_tokens":{TURN_LIMIT}}}')
    return rec


def test_o33_all_turns_are_in_the_row() -> None:
    ((row,), report) = build_rows(five_turns().calls, max_row_tokens=80)
    assert row.mask == ([0] * 10 + [1] * 6) * 5
    assert (row.calls, report.trained_tokens) == ((0, 1, 2, 3, 4), 30)


def test_o33_a_row_over_its_budget_is_refused_with_a_count() -> None:
    rows, report = build_rows(five_turns().calls, max_row_tokens=79)
    assert rows == []
    assert (report.refused, report.refused_tokens) == ({"row_too_long": 5}, {"row_too_long": 30})
