"""What must hold of every recorded rollout of a real harness: only sampled tokens are trained, each exactly once."""

from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from tests.tasks.arena import Teacher
from training.rows import build_rows

Call = Mapping[str, Any]


def prompts(calls: Sequence[Call]) -> dict[int, list[int]]:
    """Call number → the whole prompt, put together from the deltas."""
    whole: dict[int, list[int]] = {}
    sampled = {call["call"]: call["sampled_ids"] or [] for call in calls}
    for call in calls:
        parent = call["parent_call"]
        before = [] if parent is None else [*whole[parent], *sampled[parent]]
        whole[call["call"]] = [*before[: call["prompt_prefix_len"]], *call["prompt_delta_ids"]]
    return whole


def assert_trained_once(calls: Sequence[Call], teacher: Teacher, model: Path, breaks: int = 0) -> None:
    """All that the policy said is trained where it said it, position by position, and nothing else is. `breaks`: how
    many calls keep only a part of the tokens before them.

    The reference is what the policy's own server was asked and answered (`teacher.served`), not the record.
    """
    asked = prompts(calls)
    said = [(asked[call["call"]], call["sampled_ids"]) for call in calls]
    assert sorted(said) == sorted(teacher.served)
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    assert any(tokenizer.encode(tokenizer.decode(ids)) != ids for _, ids in said), "an encoder would say the same"

    rows, report = build_rows(calls, max_row_tokens=1_000_000)
    assert (report.refused, report.prefix_breaks) == ({}, breaks)
    assert sorted(number for row in rows for number in row.calls) == [call["call"] for call in calls]
    sampled = {call["call"]: call["sampled_ids"] for call in calls}
    for row in rows:
        places = set()
        for number in row.calls:
            start = len(asked[number])
            end = start + len(sampled[number])
            assert list(row.ids[:start]) == asked[number]
            assert list(row.ids[start:end]) == sampled[number]
            places |= set(range(start, end))
        assert {place for place, trained in enumerate(row.mask) if trained} == places
    assert report.trained_tokens == sum(len(ids) for _, ids in teacher.served)
