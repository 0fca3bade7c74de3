"""O58: each call has its weight version, a row is as old as its oldest, and the ratio uses what was recorded."""

from tests.support.calls import Recording
from training.batch import rl_batch
from training.rows import RowReport
from training.rows import build_rows
from training.run_epoch import alarms


def recording() -> Recording:
    rec = Recording()
    for turn, version in enumerate([4, 4, 5]):
        rec.call(turn - 1 if turn else None, [1], [2], weight_version=version, sampled_logprobs=[-0.5 - turn])
    return rec


def test_o58_age_is_that_of_the_oldest_call() -> None:
    rows, report = build_rows(recording().calls, max_row_tokens=100, weight_version=6, max_staleness=1)
    assert rows == []
    assert (report.refused, report.refused_tokens) == ({"stale": 3}, {"stale": 3})


def test_o58_within_the_limit_the_old_policy_is_the_recorded_one() -> None:
    ((row,), _) = build_rows(recording().calls, max_row_tokens=100, weight_version=6, max_staleness=2)
    assert (row.versions, row.weight_version) == ((4, 4, 5), 4)
    assert rl_batch([row], {row.rollout: 1.0})["old_log_probs"].unbind()[0].tolist() == [-0.5, 0.0, -1.5, 0.0, -2.5]


def test_o58_a_difference_to_older_rows_is_not_laid_to_the_policy_server_alone() -> None:
    result = {"skipped": False, "logprob_agreement": {"mean": 0.05}}
    (same_weights,) = alarms({**result, "staleness": {0: 9}}, RowReport())
    (older,) = alarms({**result, "staleness": {0: 3, 2: 6}}, RowReport())
    assert same_weights.startswith("trainer and policy server disagree: mean |difference|")
    assert older.startswith("trainer and rows up to 2 versions old have moved apart, or the policy server is")
