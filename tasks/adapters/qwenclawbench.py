"""QwenClawBench: work in a workspace with OpenClaw (github.com/SKYLENAGE-AI/QwenClawBench).

`tasks/task_*.md` is a task: YAML between dashes, then sections. `assets/<task id>/` holds the files of its workspace.
`Automated Checks` is Python that defines `grade(transcript, workspace_path)`, `LLM Judge Rubric` what a judge rates;
of the 100 published tasks 99 want both.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from typing import Literal

import yaml
from pydantic import BaseModel
from pydantic import Field

from proxy_addons.errors import VerifierError
from tasks.adapters import Item
from tasks.adapters import Need
from tasks.adapters import Problems
from tasks.adapters import judge
from tasks.adapters import read_yaml
from tasks.adapters import task_id
from tasks.adapters import unique

NAME = "qwenclawbench"
ABOUT = "work in a workspace, for OpenClaw"
GIVE = "the folder with tasks/ and assets/ (data/qwenclawbench-v1.1-100 of its repository)"

THRESHOLD = 0.75
_FRONT = re.compile(r"\A---\s*\n(.*?)\n---\s*\n(.*)\Z", re.S)
# Only where the task came from, and not always YAML.
_TRACING = re.compile(r"^source_(?:query|line_number):.*?(?=^\w+:|\Z)", re.M | re.S)
_SECTION = re.compile(r"^## +(.+?)\s*$", re.M)
_CODE = re.compile(r"```python\s*\n(.*?)\n\s*```", re.S)
_TRANSCRIPT = "OpenClaw's own, which checks and judge read; it is not made from the recorded calls yet"


class Asset(BaseModel):
    """A file of the workspace, from the task's assets."""

    source: str
    dest: str


class Inline(BaseModel):
    """A file of the workspace, written out in the task."""

    path: str
    content: str


class Weights(BaseModel):
    """How the two scores of a hybrid task are weighed. Another name (`llm`) does not count, in its own code either."""

    automated: float = Field(default=0.5, ge=0)
    llm_judge: float = Field(default=0.5, ge=0)


class Sheet(BaseModel):
    """A task file."""

    id: str = Field(min_length=1)
    category: str = "other"
    grading_type: Literal["automated", "llm_judge", "hybrid"] = "automated"
    grading_weights: Weights = Weights()
    timeout_seconds: float = Field(default=120, gt=0)
    workspace_files: list[Asset | Inline] = Field(default_factory=list)
    external_dependency: str = "none"
    prompt: str = Field(min_length=1)
    checks: str = ""
    rubric: str = ""


def read(folder: Path) -> list[Item]:
    """Its tasks. Raises ConfigError."""
    problems, items = Problems(), []
    for file in sorted((folder / "tasks").glob("task_*.md")):
        try:
            data = parse(file.read_text())
        except (ValueError, yaml.YAMLError) as error:
            problems.lines.append(f"{file.name}: {str(error).splitlines()[0]}")
            continue
        sheet = problems.parse(file.name, Sheet, data)
        if sheet is not None:
            items.append(_item(sheet, folder))
    problems.raise_any(len(items), folder, f"tasks/task_*.md; give {GIVE}")
    return unique(items)


def parse(text: str) -> dict[str, Any]:
    """The fields of a task file. Raises ValueError if it does not begin with YAML between dashes."""
    found = _FRONT.match(text)
    if not found:
        raise ValueError("it does not begin with YAML between two lines of dashes")
    fields = read_yaml(_TRACING.sub("", found[1]))
    if not isinstance(fields, dict):
        raise ValueError("what is between the dashes is not a table")
    if isinstance(fields.get("external_dependency"), bool):  # one task says `false`
        fields["external_dependency"] = "other" if fields["external_dependency"] else "none"
    parts = _SECTION.split(found[2])
    sections = dict(zip(parts[1::2], (part.strip() for part in parts[2::2]), strict=True))
    code = _CODE.search(sections.get("Automated Checks", ""))
    return {
        **{name: value for name, value in fields.items() if value is not None},
        "prompt": sections.get("Prompt", ""),
        "checks": code[1] if code else "",
        "rubric": sections.get("LLM Judge Rubric", ""),
    }


def _item(sheet: Sheet, folder: Path) -> Item:
    assets = folder / "assets"
    needs = []
    for entry in sheet.workspace_files:
        if isinstance(entry, Asset):
            there = any((place / entry.source).exists() for place in (assets / sheet.id, assets))
            needs.append(Need("file", entry.source, "" if there else f"it is not in {assets / sheet.id}"))
    if sheet.external_dependency != "none":
        needs.append(Need("site", sheet.external_dependency, "a service outside the sandbox"))
    needs.append(Need("transcript", "", _TRANSCRIPT))
    if sheet.grading_type != "llm_judge" and not sheet.checks:
        needs.append(Need("checks", "", "the task has no Automated Checks, so they cannot be run"))
    if sheet.grading_type != "automated":
        needs.append(judge.need())
    return Item(task_id(sheet.id), sheet.prompt, sheet.category, tuple(needs), sheet)


def automated(scores: Mapping[str, Any]) -> float:
    """The mean of what `grade` returned, its numbers. Raises VerifierError if it has none."""
    numbers = [float(value) for value in scores.values() if isinstance(value, int | float)]
    if not numbers:
        raise VerifierError("grade() returned no number")
    return sum(numbers) / len(numbers)


def score(sheet: Sheet, checked: float | None, judged: float | None) -> float:
    """0.0 to 1.0 of the checks' score and the judge's (`scripts/lib_grading.py`, without --simple-scoring).

    hybrid: (w_auto * auto + w_llm * llm) / (w_auto + w_llm), where llm counts as 0 if auto < 0.75.
    Raises VerifierError if one that counts is missing.
    """
    weights = sheet.grading_weights
    if sheet.grading_type == "automated":
        weights = Weights(automated=1, llm_judge=0)
    elif sheet.grading_type == "llm_judge":
        weights = Weights(automated=0, llm_judge=1)
    elif weights.automated + weights.llm_judge == 0:
        weights = Weights()
    if (weights.automated and checked is None) or (weights.llm_judge and judged is None):
        missing = "checks" if checked is None and weights.automated else "judge"
        raise VerifierError(f"the {missing} gave no score, and it counts in this task's")
    auto, llm = checked or 0.0, judged or 0.0
    if sheet.grading_type == "hybrid" and auto < THRESHOLD:
        llm = 0.0
    return (weights.automated * auto + weights.llm_judge * llm) / (weights.automated + weights.llm_judge)
