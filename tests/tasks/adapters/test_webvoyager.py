import json
from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from proxy_addons.errors import VerifierError
from tasks.adapters import webvoyager
from tests.tasks.adapters.published import published

LINE = {"web_name": "Shop", "id": "Shop--0", "ques": "How much is it?", "web": "https://shop.example/a"}


def write(folder: Path, *lines: object) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "WebVoyager_data.jsonl").write_text(text)
    return folder


def test_reads_a_question_with_its_answer(tmp_path: Path) -> None:
    write(tmp_path, LINE, "", LINE | {"id": "Shop--1"})
    answers = {"Shop": {"notice": "", "answers": [{"id": 0, "type": "golden", "ans": "5 euros"}]}}
    (tmp_path / "reference_answer.json").write_text(json.dumps(answers))
    first, second = webvoyager.read(tmp_path)
    assert (first.id, first.kind) == ("shop-0", "Shop")
    assert first.instruction == "How much is it?\nStart at https://shop.example/a"
    assert isinstance(first.record, webvoyager.Question)
    assert isinstance(second.record, webvoyager.Question)
    assert (first.record.answer, first.record.answer_type) == ("5 euros", "golden")
    assert second.record.answer is None
    assert [str(need) for need in first.needs] == ["browser", "site shop.example", "judge that sees screenshots"]
    assert first.missing


def test_every_bad_line_is_told(tmp_path: Path) -> None:
    write(tmp_path, LINE, "{", {"id": "Shop--1", "web_name": "Shop", "ques": "?"})
    with pytest.raises(ConfigError) as caught:
        webvoyager.read(tmp_path)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[1] for line in lines] == [" line 2", " line 3"]
    assert "web" in lines[1]


def test_a_folder_without_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no WebVoyager_data\.jsonl in .*; give the folder with"):
        webvoyager.read(tmp_path)


@pytest.mark.parametrize(
    ("said", "answered", "reward"),
    [
        ("It shows the price. SUCCESS", True, 1.0),
        ("It is another one. NOT SUCCESS", True, 0.0),
        ("SUCCESS? No: NOT SUCCESS", True, 0.0),
        ("", False, 0.0),
    ],
)
def test_the_verdict(said: str, answered: bool, reward: float) -> None:
    assert webvoyager.score(said, answered) == reward


def test_a_judge_that_says_neither_gives_no_verdict() -> None:
    with pytest.raises(VerifierError):
        webvoyager.score("I cannot see the screenshot.", True)


def test_all_published_questions_load() -> None:
    items = webvoyager.read(published("webvoyager"))
    assert len(items) == 643
    assert len({item.kind for item in items}) == 15
    answered = [item for item in items if isinstance(item.record, webvoyager.Question) and item.record.answer]
    assert len(answered) == 643
