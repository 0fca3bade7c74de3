"""Recorded calls → rows: which tokens are trained, where rows begin and end, and what is refused and counted."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.calls import Recording
from training.rows import Row
from training.rows import RowReport
from training.rows import build_rows


def rows_of(*recordings: Recording, limit: int = 1000, **options: Any) -> tuple[list[Row], RowReport]:
    return build_rows([c for r in recordings for c in r.calls], max_row_tokens=limit, **options)


def test_a_conversation_is_one_row() -> None:
    rec = Recording()
    rec.call(None, [1, 2], [3, 4], sampled_logprobs=[-0.5, -0.25])
    rec.call(0, [5], [6], sampled_logprobs=[-0.125], weight_version=2)
    (row,), report = rows_of(rec)
    assert row.ids == [1, 2, 3, 4, 5, 6]
    assert row.mask == [0, 0, 1, 1, 0, 1]
    assert row.logprobs == [0, 0, -0.5, -0.25, 0, -0.125]
    assert (row.calls, row.versions, row.weight_version) == ((0, 1), (0, 2), 0)
    assert (row.rollout, row.group) == ("r-e001-t-s00-t0", "r/1/t")
    assert (report.rows, report.trained_tokens, report.refused, report.refused_share) == (1, 3, {}, 0.0)


def test_a_branch_trains_only_its_own_tokens() -> None:
    rec = Recording()
    rec.call(None, [1], [2])
    rec.call(0, [3], [4])
    rec.call(0, [5], [6], chain="c1")
    main, branch = rows_of(rec)[0]
    assert (main.ids, main.mask) == ([1, 2, 3, 4], [0, 1, 0, 1])
    assert (branch.ids, branch.mask) == ([1, 2, 5, 6], [0, 0, 0, 1])


def test_two_calls_of_one_chain_cannot_both_extend_a_row() -> None:
    rec = Recording()
    rec.call(None, [1], [2])
    rec.call(0, [3], [4])
    rec.call(0, [5], [6])
    assert [row.ids for row in rows_of(rec)[0]] == [[1, 2, 3, 4], [1, 2, 5, 6]]


@pytest.mark.parametrize("status", ["error", "abandoned", "incomplete"])
def test_a_call_that_is_not_ok_is_not_trained_and_does_not_break_the_chain(status: str) -> None:
    rec = Recording()
    rec.call(None, [1], [2])
    rec.call(0, [3], [9, 9], status=status, chain="c1")
    rec.call(0, [3], [4])
    rows, report = rows_of(rec)
    assert [row.ids for row in rows] == [[1, 2, 3, 4]]
    assert (report.refused, report.refused_tokens) == ({status: 1}, {status: 2})
    assert report.refused_share == 0.5


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"findings": ["ids_missing"]}, "ids_missing"),
        ({"findings": ["truncated", "logprobs_misaligned"]}, "logprobs_misaligned"),
        ({"findings": ["weight_version_changed"]}, "weight_version_changed"),
        ({"findings": ["retokenised", "certain_tokens"]}, "certain_tokens"),
        ({"sampled_logprobs": [-1.0, -1.0]}, "logprobs_misaligned"),
        ({"sampled_logprobs": None}, "logprobs_misaligned"),
        ({"sampled_logprobs": [None]}, "logprob_not_finite"),
        ({"sampled_logprobs": [float("-inf")]}, "logprob_not_finite"),
        ({"findings": ["side_call:quota"]}, "side_call:quota"),
        ({"sampling": '{"temperature":0.0}'}, "greedy"),
        ({"sampling": '{"temperature":0.5}'}, "temperature_changed"),
        ({"sampling": '{"temperature":1.0,"top_p":0.9}'}, "top_p"),
        ({"sampling": '{"temperature":0.5}', "logprob_kind": "raw"}, "logprobs_before_temperature"),
    ],
)
def test_an_unusable_call_is_context_for_those_after_it(fields: dict[str, Any], reason: str) -> None:
    rec = Recording()
    rec.call(None, [1], [2])
    rec.call(0, [3], [4], **fields)
    rec.call(1, [5], [6])
    (row,), report = rows_of(rec)
    assert (row.ids, row.mask) == ([1, 2, 3, 4, 5, 6], [0, 1, 0, 0, 0, 1])
    assert (row.calls, report.refused, report.refused_tokens) == ((0, 2), {reason: 1}, {reason: 1})


def test_what_is_left_out_is_a_setting() -> None:
    rec = Recording()
    rec.call(None, [1], [2], findings=["side_call:no_tools"])
    rec.call(None, [3], [4], findings=["compaction_request"], chain="c1")
    assert [row.calls for row in rows_of(rec)[0]] == [(1,)]
    assert [row.calls for row in rows_of(rec, leave_out=())[0]] == [(0,), (1,)]
    rows, report = rows_of(rec, leave_out=("compaction_request",))
    assert [row.calls for row in rows] == [(0,)]
    assert report.refused == {"compaction_request": 1}


def test_a_row_ends_at_its_last_trained_token() -> None:
    rec = Recording()
    rec.call(None, [1], [2])
    rec.call(0, [3], [4], findings=["ids_missing"])
    assert rows_of(rec)[0][0].ids == [1, 2]


def test_findings_about_the_policys_own_turn_do_not_stop_training() -> None:
    rec = Recording()
    rec.call(None, [1], [2], findings=["truncated", "tool_call_unreadable", "prefix_break"])
    assert rows_of(rec)[0][0].mask == [0, 1]


def test_a_forged_turn_spoils_every_later_call_but_not_those_before() -> None:
    rec = Recording()
    rec.call(None, [1], [2])
    rec.call(0, [3], [4], findings=["control_token_in_content"])
    rec.call(1, [5], [6])
    rec.call(2, [7], [8], chain="c1")
    (row,), report = rows_of(rec)
    assert row.ids == [1, 2]
    assert report.refused == {"control_token_in_content": 3}


def test_a_first_call_without_a_prompt_is_refused() -> None:
    rec = Recording()
    rec.call(None, [], [2])
    assert rows_of(rec)[1].refused == {"no_prompt": 1}


def test_broken_records_cost_their_own_rollout_only() -> None:
    whole, holed, doubled = Recording(0), Recording(1), Recording(2)
    for rec in (whole, holed, doubled):
        rec.call(None, [1], [2])
        rec.call(0, [3], [4])
    calls = [*whole.calls, holed.calls[1], *doubled.calls, doubled.calls[1]]
    rows, report = build_rows(calls, max_row_tokens=100)
    assert [row.rollout for row in rows] == [whole.rollout]
    assert report.refused == {"broken_record": 4}


def test_temperature_is_the_calls_own() -> None:
    rec = Recording()
    rec.call(None, [1], [2], sampling='{"temperature":0.5}')
    assert rows_of(rec)[0][0].temperature == 0.5


def test_a_teacher_without_log_probabilities_can_be_imitated() -> None:
    rec = Recording()
    rec.call(None, [1], [2], sampled_logprobs=None, findings=["logprobs_misaligned"], sampling='{"temperature":0.0}')
    (row,), _ = rows_of(rec, need_logprobs=False)
    assert (row.mask, row.logprobs) == ([0, 1], [0.0, 0.0])
    assert rows_of(rec)[0] == []


tokens = st.lists(st.integers(0, 9), min_size=1, max_size=3)


@given(st.lists(st.tuples(st.integers(0, 9), tokens, tokens, st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_every_usable_token_is_trained_once_and_after_what_the_model_saw(
    steps: list[tuple[int, list[int], list[int], bool, bool]],
) -> None:
    rec = Recording()
    for number, (back, delta, sampled, cut, usable) in enumerate(steps):
        parent = number - 1 - back if number > back else None
        keep = len(rec.texts[parent]) // 2 if parent is not None and cut else None
        findings = [] if usable else ["ids_missing"]
        rec.call(parent, delta, sampled, keep=keep, findings=findings, chain="c0" if back == 0 else f"c{number}")
    rows, report = rows_of(rec)
    trained: dict[int, list[int]] = {}
    for row in rows:
        assert len(row.ids) == len(row.mask) == len(row.logprobs)
        assert row.mask[0] == 0
        spans = [i for i, bit in enumerate(row.mask) if bit]
        for call in row.calls:
            text, length = rec.texts[call], len(steps[call][2])
            assert row.ids[: len(text)] == text, "the tokens before are those that the model saw"
            mine = spans[:length]
            assert mine == list(range(len(text) - length, len(text)))
            assert call not in trained
            trained[call] = mine
            spans = spans[length:]
        assert spans == []
    assert sorted(trained) == [n for n, step in enumerate(steps) if step[4]]
    assert report.trained_tokens + report.refused_tokens.total() == sum(len(step[2]) for step in steps)
