from typing import Any

import pytest

from proxy_addons.conversation import Problem
from proxy_addons.dialects import reading


@pytest.mark.parametrize(
    ("read", "value", "where"),
    [
        (reading.as_list, {"a": 1}, "messages"),
        (reading.as_object, [], "messages[3]"),
        (reading.as_text, 5, "model"),
        (reading.as_name, "", "tools[0].name"),
        (reading.as_name, None, "tools[0].name"),
        (reading.strings, ["a", 1], "stop"),
    ],
)
def test_a_wrong_type_names_its_place(read: Any, value: Any, where: str) -> None:
    with pytest.raises(Problem) as caught:
        read(value, where)
    assert caught.value.kind == "bad_request"
    assert where in caught.value.message


@pytest.mark.parametrize("value", ["0.5", True, [1], float("nan"), float("inf")])
def test_number_refuses(value: Any) -> None:
    with pytest.raises(Problem, match="temperature: must be a number"):
        reading.number({"temperature": value}, "temperature")


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "10"])
def test_count_refuses(value: Any) -> None:
    with pytest.raises(Problem, match="max_tokens: must be a whole number"):
        reading.count({"max_tokens": value}, "max_tokens")


def test_absent_numbers_are_none() -> None:
    assert reading.number({}, "temperature") is None
    assert reading.number({"temperature": 0}, "temperature") == 0.0
    assert reading.count({"max_tokens": None}, "max_tokens") is None


def test_strings_takes_one_or_many() -> None:
    assert reading.strings("###", "stop") == ("###",)
    assert reading.strings(["a", "", "b"], "stop") == ("a", "b")
    assert reading.strings(None, "stop") == ()


def test_header_ignores_case_and_empty_values() -> None:
    assert reading.header({"Thread-ID": "t"}, "thread-id") == "t"
    assert reading.header({"thread-id": ""}, "thread-id") is None


@pytest.mark.parametrize("text", ["", "[1]", '"a"', "{", '{"a": NaN}', '{"a": 1e999}', "[" * 100_000])
def test_object_in_takes_objects_only(text: str) -> None:
    assert reading.object_in(text) is None


def test_object_in_reads_an_object() -> None:
    assert reading.object_in(' {"a": [1, null]}\n') == {"a": [1, None]}


def test_unknown_block_is_a_placeholder_a_flag_and_a_note() -> None:
    notes: list[str] = []
    content = [{"type": "text", "text": "before"}, {"type": "hologram", "data": "x"}, {"type": "text", "text": "after"}]
    given = reading.content_of(content, "messages[0].content", notes)
    assert given.text == "before\n[block of type hologram omitted: this policy reads text only]\nafter"
    assert given.flags == ("unknown_block",)
    assert notes == ["unknown_block:hologram"]


@pytest.mark.parametrize(
    ("block", "text", "flags"),
    [
        ({"type": "tool_reference", "tool_name": "Grep"}, "[tool available: Grep]", ("tool_reference",)),
        ({"type": "refusal", "refusal": "no"}, "no", ()),
        ({"type": "document"}, "[document omitted: this policy reads text only]", ("document_omitted",)),
        ({"type": "input_audio"}, "[audio omitted: this policy reads text only]", ("audio_omitted",)),
    ],
)
def test_known_blocks(block: dict[str, Any], text: str, flags: tuple[str, ...]) -> None:
    notes: list[str] = []
    assert reading.block_content(block, "content[0]", notes) == reading.Content(text, flags)
    assert notes == []


def test_content_of_a_wrong_shape_is_refused() -> None:
    for content in (5, {"type": "text"}, ["text"], [{"text": "no type"}]):
        with pytest.raises(Problem, match=r"messages\[0\]\.content"):
            reading.content_of(content, "messages[0].content", [])
