"""O34: masks come from lengths, so an end-of-turn token is trained even where its id is also the padding's."""

from tests.support.calls import Recording
from training.batch import rl_batch
from training.rows import build_rows

EOS = 0  # and what nested tensors are padded with


def test_o34_both_end_tokens_are_trained() -> None:
    rec = Recording()
    rec.call(None, [7], [8, EOS])
    rec.call(0, [5], [9, EOS])
    other = Recording(1)
    other.call(None, [7, 7], [EOS])
    rows, _ = build_rows([*rec.calls, *other.calls], max_row_tokens=100)
    assert [row.mask for row in rows] == [[0, 1, 1, 0, 1, 1], [0, 0, 1]]
    batch = rl_batch(rows, {row.rollout: 1.0 for row in rows})
    assert [part.tolist() for part in batch["responses"].unbind()] == [[8, EOS, 5, 9, EOS], [EOS]]
    assert [part.tolist() for part in batch["response_mask"].unbind()] == [[1, 1, 0, 1, 1], [1]]
