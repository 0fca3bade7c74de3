"""O36: a mismatch late in a trajectory costs a second row, not the trajectory; losses are counted, with an alarm."""

from tests.support.calls import Recording
from training.rows import build_rows
from training.run_epoch import alarms


def test_o36_turns_before_and_after_the_mismatch_are_trained() -> None:
    rec = Recording()
    for turn in range(10):
        rec.call(turn - 1 if turn else None, [1], [2], keep=3 if turn == 8 else None)
    (before, after), report = build_rows(rec.calls, max_row_tokens=100)
    assert (before.calls, after.calls) == (tuple(range(8)), (8, 9))
    assert (report.prefix_breaks, report.trained_tokens, report.refused_share) == (1, 10, 0.0)


def test_o36_a_large_loss_is_an_alarm() -> None:
    rec = Recording()
    for turn in range(10):
        rec.call(turn - 1 if turn else None, [1], [2], findings=["logprobs_misaligned"] if turn < 3 else [])
    report = build_rows(rec.calls, max_row_tokens=100)[1]
    assert report.refused_share == 0.3
    (alarm,) = alarms({"skipped": False, "logprob_agreement": {"mean": 0.0}}, report)
    assert alarm == "30% of the sampled tokens were not trained: {'logprobs_misaligned': 3}"
