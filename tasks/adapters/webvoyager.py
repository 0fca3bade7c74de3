"""WebVoyager: questions to live web sites, answered in a browser (github.com/MinorJerry/WebVoyager).

`data/WebVoyager_data.jsonl` has a task a line, `data/reference_answer.json` an answer for each, which is `golden`
(stays true) or `possible` (was true once). It needs its sites, a browser and a judge that sees screenshots.
"""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from proxy_addons.errors import ConfigError
from proxy_addons.errors import VerifierError
from tasks.adapters import Item
from tasks.adapters import Need
from tasks.adapters import Problems
from tasks.adapters import judge
from tasks.adapters import task_id
from tasks.adapters import unique

NAME = "webvoyager"
ABOUT = "questions to 15 live web sites"
GIVE = "the folder with WebVoyager_data.jsonl and reference_answer.json (data/ of its repository)"

BROWSER = Need("browser", "", "no harness here drives one")
_LIVE = "a live site; its answers change, and a sandbox reaches no site that its task does not allow"


class Question(BaseModel):
    """A line of WebVoyager_data.jsonl, with its reference answer if there is one."""

    id: str
    web_name: str
    ques: str
    web: str
    answer: str | None = None
    answer_type: str | None = None


def read(folder: Path) -> list[Item]:
    """Its questions. Raises ConfigError."""
    file = next(
        (
            path
            for path in (folder / "WebVoyager_data.jsonl", folder / "data/WebVoyager_data.jsonl", folder)
            if path.is_file()
        ),
        None,
    )
    if file is None:
        raise ConfigError(f"{NAME}: no WebVoyager_data.jsonl in {folder}; give {GIVE}")
    problems, items = Problems(), []
    answers = _answers(file.with_name("reference_answer.json"))
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line.strip():
            continue
        question = problems.parse(f"{file.name}: line {number}", Question, json_object(line))
        if question is not None:
            question = question.model_copy(update=answers.get(question.id, {}))
            items.append(_item(question))
    problems.raise_any(len(items), file, "questions")
    return unique(items)


def _item(question: Question) -> Item:
    return Item(
        id=task_id(question.id),
        instruction=f"{question.ques}\nStart at {question.web}",
        kind=question.web_name,
        needs=(BROWSER, site(question.web), judge.need("that sees screenshots")),
        record=question,
    )


def score(said: str, answered: bool) -> float:
    """1.0 or 0.0 of what the judge said about an answer and its last screenshots (`evaluation/auto_eval.py`).

    `NOT SUCCESS` anywhere is 0, else `SUCCESS` is 1; a run that gave no answer is 0 and is not judged. Raises
    VerifierError where the judge said neither.
    """
    if not answered:
        return 0.0
    if "NOT SUCCESS" in said:
        return 0.0
    if "SUCCESS" in said:
        return 1.0
    raise VerifierError("the judge said neither SUCCESS nor NOT SUCCESS")


def site(url: str) -> Need:
    """The live site of `url`, as something that a task needs."""
    return Need("site", urlsplit(url if "//" in url else f"//{url}").hostname or url, _LIVE)


def json_object(line: str) -> Any:
    """The value of a line; the text itself where it is no JSON, which no record accepts."""
    try:
        return json.loads(line)
    except ValueError:
        return line


def _answers(file: Path) -> dict[str, dict[str, str]]:
    """Question id → its reference answer. The file is site → {answers: [{id, type, ans}]}, ids counted per site."""
    if not file.is_file():
        return {}
    try:
        sites = json.loads(file.read_text())
        return {
            f"{name}--{answer['id']}": {"answer": answer["ans"], "answer_type": answer["type"]}
            for name, entry in sites.items()
            for answer in entry["answers"]
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{file}: is not reference_answer.json as WebVoyager publishes it") from None
