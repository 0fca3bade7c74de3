"""O55: a row that is not trained is in neither the numerator nor the denominator of the loss."""

from pathlib import Path

import pytest

from tests.support.calls import Recording
from tests.support.policy import hf_log_probs
from tests.support.policy import make_learner
from tests.support.policy import save_policy
from training.rows import Row
from training.rows import build_rows

pytestmark = pytest.mark.timeout(120)


def rows(policy: Path, second: str) -> list[Row]:
    recordings = [Recording(0), Recording(1)]
    for rec, status in zip(recordings, ("ok", second), strict=True):
        ids = [1, 2, 3, *range(10, 17)]
        rec.call(None, ids[:3], ids[3:], status=status, sampled_logprobs=hf_log_probs(policy, ids)[3:])
    return build_rows([c for rec in recordings for c in rec.calls], max_row_tokens=100)[0]


def test_o55_the_loss_is_that_of_the_valid_row_alone(tmp_path: Path) -> None:
    policy = save_policy(tmp_path / "policy")
    with_refused = make_learner(policy).update(rows(policy, "incomplete"), {"r-e001-t-s00-t0": 2.0}, seed=0, step=0)
    alone = make_learner(policy).update(rows(policy, "ok")[:1], {"r-e001-t-s00-t0": 2.0}, seed=0, step=0)
    assert with_refused["pg_loss"] == alone["pg_loss"] == pytest.approx(-2.0, abs=1e-5)
    assert with_refused["grad_norm"] == alone["grad_norm"]


def test_o55_nothing_valid_is_no_row() -> None:
    rec = Recording()
    rec.call(None, [1], [2], status="incomplete")
    assert build_rows(rec.calls, max_row_tokens=100)[0] == []
