"""O31: what an earlier part sampled is context, what the resumed part sampled is trained, and lengths agree."""

from tests.support.calls import Recording
from training.rows import build_rows

OLD = [11, 12, 13, 14, 15]


def test_o31_old_tokens_are_masked_and_new_ones_trained() -> None:
    rec = Recording()
    rec.call(None, [1], OLD, status="abandoned")
    rec.call(0, [], [16, 17, 18])
    ((row,), _) = build_rows(rec.calls, max_row_tokens=100)
    assert row.ids == [1, *OLD, 16, 17, 18]
    assert row.mask == [0] + [0] * 5 + [1] * 3
    assert len(row.logprobs) == 9


def test_o31_holds_after_a_second_resume() -> None:
    rec = Recording()
    rec.call(None, [1], OLD, status="abandoned")
    rec.call(0, [], [16, 17, 18], status="abandoned")
    rec.call(1, [], [19])
    ((row,), report) = build_rows(rec.calls, max_row_tokens=100)
    assert row.mask == [0] * 9 + [1]
    assert report.refused_tokens == {"abandoned": 8}
