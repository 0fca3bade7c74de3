"""A model's answer is untrusted: what has the form gets in, everything else is one reason."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.curate.answer import read
from tasks.curate.draft import PYTHON_IMAGE
from tasks.curate.draft import Draft
from tasks.curate.draft import Unusable

GOOD: dict[str, Any] = {"instruction": "Do it.", "files": {"a/b.txt": "x"}, "solution": "true", "test": "echo 1"}
DRAFT = Draft("Do it.", {"a/b.txt": "x"}, {"test.sh": "echo 1"}, "true", PYTHON_IMAGE)


@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```", "\n```\n{}\n```\n"])
def test_an_object_alone_or_in_a_fence(form: str) -> None:
    assert read(form.replace("{}", json.dumps(GOOD))) == DRAFT


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "unreadable: the answer: Invalid JSON"),
        ("Here it is: {}", "unreadable: the answer: Invalid JSON"),
        ("[]", "unreadable: the answer: Input should be an object"),
        (json.dumps(GOOD | {"more": 1}), "unreadable: more: Extra inputs are not permitted"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "test"}), "unreadable: test: Field required"),
        (json.dumps(GOOD | {"test": ""}), "unreadable: test: Value should have at least 1 item"),
        (json.dumps(GOOD | {"solution": 3}), "unreadable: solution: Input should be a valid string"),
        (json.dumps(GOOD | {"files": {"a": "\0"}}), "unreadable: files.a: Value error, must not hold a NUL"),
        (json.dumps(GOOD | {"files": {"a": "1", "a/b": "2"}}), "unreadable: files: a is a file and a folder"),
        (json.dumps(GOOD | {"files": {f"f{n}": "" for n in range(51)}}), "unreadable: files: Dictionary should have"),
        (json.dumps(GOOD | {"instruction": "x" * 100_001}), "unreadable: instruction: String should have at most"),
    ],
)
def test_one_reason_a_refusal(text: str, reason: str) -> None:
    with pytest.raises(Unusable) as refusal:
        read(text)
    assert str(refusal.value).startswith(reason)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "a/../b", "a//b", ".git/config", "a\nb", "~/x y", "", "a/"])
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(Unusable, match="unreadable: files"):
        read(json.dumps(GOOD | {"files": {path: "x"}}))


@given(st.text() | st.binary().map(bytes.hex) | st.recursive(st.none() | st.text(), st.lists).map(json.dumps))
def test_nothing_gets_out_but_a_refusal(text: str) -> None:
    with pytest.raises(Unusable):
        read(text)
