import json
from typing import Any

from tasks import transcript


def call(number: int, parent: int | None, *messages: dict[str, Any], **given: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "call": number,
        "parent_call": parent,
        "status": "ok",
        "messages_delta": json.dumps(messages),
        "findings": [],
    }
    return fields | given


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


USER = {"role": "user", "content": "Go on."}


def test_every_message_once_and_in_order() -> None:
    calls = [call(1, 0, USER, says("two")), call(0, None, USER, says("one"))]
    assert transcript.messages(calls) == [USER, says("one"), USER, says("two")]


def test_a_branch_repeats_its_history_and_it_is_left_out() -> None:
    summary = {"role": "user", "content": "So far: one."}
    calls = [call(0, None, USER, says("one")), call(1, None, USER, says("one"), summary, says("one"))]
    assert transcript.messages(calls) == [USER, says("one"), summary, says("one")]


def test_side_calls_and_failed_ones_are_no_part_of_it() -> None:
    calls = [
        call(0, None, USER, says("a title"), findings=["side_call:no_tools"]),
        call(1, None, USER, status="error"),
        call(2, None, USER, says("one")),
    ]
    assert transcript.messages(calls) == [USER, says("one")]


def test_nobody_said_anything() -> None:
    assert transcript.messages([]) == []
