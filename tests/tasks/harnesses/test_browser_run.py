"""What counts as an action, without a browser."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.harnesses.browser_run import ACTIONS
from tasks.harnesses.browser_run import SYSTEM_PROMPT
from tasks.harnesses.browser_run import Refused
from tasks.harnesses.browser_run import parse


def test_every_action_is_shown_to_the_policy_and_reads_as_shown() -> None:
    shown = [line for line in SYSTEM_PROMPT.splitlines() if line.startswith("{")]
    assert [parse(line)["action"] for line in shown] == list(ACTIONS)


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ("I click the button.", "not one JSON object"),
        ("", "not one JSON object"),
        ('{"action": "wait", "seconds": 1} {"action": "wait", "seconds": 1}', "not one JSON object"),
        ('```json\n{"action": "wait", "seconds": 1}\n```', "not one JSON object"),
        ('{"action": "wait", "seconds": ' + "9" * 5000 + "}", "not one JSON object"),
        ("[" * 100_000, "not one JSON object"),
        ('[{"action": "wait", "seconds": 1}]', "not a JSON object"),
        ('{"seconds": 1}', "action must be one of click"),
        ('{"action": ["click"], "x": 1, "y": 1}', "action must be one of click"),
        ('{"action": "close"}', "action must be one of click"),
        ('{"action": "click", "x": 1}', "click takes x, y"),
        ('{"action": "click", "x": 1, "y": 1, "button": "left"}', "click takes x, y"),
        ('{"action": "click", "x": 1, "x": 2, "y": 1}', "a field is given twice"),
        ('{"action": "click", "x": 1280, "y": 1}', "x must be from 0 to 1279"),
        ('{"action": "click", "x": 1, "y": 720}', "y must be from 0 to 719"),
        ('{"action": "click", "x": 1.0, "y": 1}', "x must be a whole number"),
        ('{"action": "click", "x": true, "y": 1}', "x must be a whole number"),
        ('{"action": "wait", "seconds": NaN}', "seconds must be a whole number"),
        ('{"action": "type", "text": 5}', "text must be text"),
        ('{"action": "type", "text": "\\ud800"}', "text holds half a character"),
        ('{"action": "goto", "url": "file:///workspace/site/server.py"}', "url must begin with http"),
        ('{"action": "goto", "url": "view-source:http://127.0.0.1:8000/"}', "url must begin with http"),
    ],
)
def test_anything_else_is_refused_in_words_for_the_policy(reply: str, says: str) -> None:
    with pytest.raises(Refused, match=says):
        parse(reply)


VALUES: Any = (
    st.none() | st.booleans() | st.integers(-2000, 2000) | st.text(max_size=9) | st.sampled_from(["", "http://a"])
)
OBJECTS = st.dictionaries(st.sampled_from(["action", "x", "y", "dy", "text", "url", "seconds", "answer"]), VALUES)
REPLIES = st.text() | st.builds(
    lambda name, fields: json.dumps({"action": name, **fields}), st.sampled_from([*ACTIONS]), OBJECTS
)


@given(reply=REPLIES)
def test_whatever_is_said_it_is_an_action_within_the_page_or_refused(reply: str) -> None:
    try:
        action = parse(reply)
    except Refused:
        return
    assert action == json.loads(reply)
    assert 0 <= action.get("x", 0) < 1280 and 0 <= action.get("y", 0) < 720
