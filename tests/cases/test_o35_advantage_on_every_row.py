"""O35: each row of a rollout carries the rollout's advantage at its own trained tokens."""

from tests.support.calls import Recording
from training.batch import rl_batch
from training.rows import build_rows


def test_o35_the_advantage_is_at_every_trained_token_of_all_rows_and_nowhere_else() -> None:
    rec = Recording()
    rec.call(None, [1], [2, 3], chain="c0")
    rec.call(None, [4, 4], [5, 6, 7, 8], chain="c1")
    rec.call(0, [9], [1], chain="c0")
    rec.call(None, [1] * 5, [2], chain="c2")
    rows, _ = build_rows(rec.calls, max_row_tokens=100)
    assert len(rows) == 3
    batch = rl_batch(rows, {rec.rollout: 0.5})
    assert [part.tolist() for part in batch["advantages"].unbind()] == [[0.5, 0.5, 0.0, 0.5], [0.5] * 4, [0.5]]
