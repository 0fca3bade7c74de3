from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from proxy_addons.errors import VerifierError
from tasks.adapters import qwenclawbench
from tasks.adapters.qwenclawbench import Sheet
from tasks.adapters.qwenclawbench import Weights

TASK = """\
---
id: task_00001_kettle_report
category: Data Analysis
grading_type: hybrid
grading_weights:
  automated: 0.6
  llm_judge: 0.4
timeout_seconds: 900
source_query: "a text: with {colons}
  over two lines"
external_dependency: none
workspace_files:
- source: data/kettles.csv
  dest: kettles.csv
- path: notes/SOUL.md
  content: "# Soul"
---
## Prompt

Write report.md.

### A heading of the prompt

## Automated Checks

```python
def grade(transcript, workspace_path):
    text = '''
    ```
    '''
    return {"report": 1.0}
```

## LLM Judge Rubric

### Accuracy
"""


def write(folder: Path, text: str = TASK) -> Path:
    (folder / "tasks").mkdir(exist_ok=True)
    (folder / "tasks/task_00001_kettle_report.md").write_text(text)
    return folder


def test_reads_a_task(tmp_path: Path) -> None:
    assets = write(tmp_path) / "assets/task_00001_kettle_report/data"
    (found,) = qwenclawbench.read(tmp_path)
    assert [str(need) for need in found.missing][:2] == ["file data/kettles.csv", "transcript"]
    assets.mkdir(parents=True)
    (assets / "kettles.csv").write_text("")
    (found,) = qwenclawbench.read(tmp_path)
    assert "file data/kettles.csv" not in [str(need) for need in found.missing]
    assert found.instruction == "Write report.md.\n\n### A heading of the prompt"
    assert isinstance(found.record, Sheet)
    assert found.record.checks.startswith("def grade(")
    assert found.record.rubric == "### Accuracy"
    assert found.record.grading_weights == Weights(automated=0.6, llm_judge=0.4)
    assert found.record.timeout_seconds == 900


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# no front", "does not begin with YAML"),
        (TASK.replace("hybrid", "vibes"), "grading_type"),
        (TASK.replace("Write report.md.", "").replace("### A heading of the prompt", ""), "prompt"),
        (TASK.replace("category: Data Analysis", "category: [a"), "task_00001_kettle_report.md: "),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        qwenclawbench.read(write(tmp_path, text))


def sheet(kind: str, **weights: float) -> Sheet:
    fields = {"id": "a", "prompt": "p", "grading_type": kind} | ({"grading_weights": weights} if weights else {})
    return Sheet.model_validate(fields)


@pytest.mark.parametrize(
    ("task", "checked", "judged", "reward"),
    [
        (sheet("hybrid", automated=0.6, llm_judge=0.4), 0.9, 0.85, 0.88),
        (sheet("hybrid", automated=0.6, llm_judge=0.4), 0.7, 0.95, 0.42),
        (sheet("hybrid", automated=0.6, llm_judge=0.4), 1.0, 0.5, 0.8),
        (sheet("hybrid"), 0.75, 0.25, 0.5),
        (sheet("hybrid", automated=0, llm_judge=0), 1.0, 0.0, 0.5),
        (sheet("automated"), 0.3, None, 0.3),
        (sheet("llm_judge"), None, 0.9, 0.9),
    ],
)
def test_the_score(task: Sheet, checked: float | None, judged: float | None, reward: float) -> None:
    assert qwenclawbench.score(task, checked, judged) == pytest.approx(reward)


@pytest.mark.parametrize(("kind", "checked", "judged"), [("hybrid", 0.2, None), ("automated", None, 1.0)])
def test_a_missing_score_is_no_verdict(kind: str, checked: float | None, judged: float | None) -> None:
    with pytest.raises(VerifierError):
        qwenclawbench.score(sheet(kind), checked, judged)


def test_the_checks_score_is_the_mean_of_the_numbers() -> None:
    assert qwenclawbench.automated({"a": 1, "b": 0.5, "note": "fine"}) == 0.75
    with pytest.raises(VerifierError):
        qwenclawbench.automated({"note": "fine"})
