"""O26: a template that drops earlier reasoning breaks the prefix; the new row's prompt is what the model really saw."""

from tests.support.calls import Recording
from training.rows import build_rows

USER, THINK, ANSWER, TOOL, RESULT = 1, 2, 3, 4, 5


def test_o26_a_tool_loop_is_one_row_and_a_new_user_turn_opens_a_second() -> None:
    rec = Recording()
    rec.call(None, [USER], [THINK, TOOL])
    rec.call(0, [RESULT], [THINK, ANSWER])
    # The next prompt no longer shows any reasoning: only the first token is shared.
    rec.call(1, [TOOL, RESULT, ANSWER, USER], [THINK, ANSWER], keep=1, findings=["prefix_break"])
    (loop, after), report = build_rows(rec.calls, max_row_tokens=100)
    assert (loop.ids, loop.mask) == ([USER, THINK, TOOL, RESULT, THINK, ANSWER], [0, 1, 1, 0, 1, 1])
    assert after.ids == [USER, TOOL, RESULT, ANSWER, USER, THINK, ANSWER]
    assert after.mask == [0, 0, 0, 0, 0, 1, 1]
    assert (report.prefix_breaks, report.trained_tokens) == (1, 6)
