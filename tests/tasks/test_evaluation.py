"""What an evaluation says of recorded rollouts: written as files of the real schema, read as the flow reads them."""

import json
from dataclasses import replace
from datetime import UTC
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from proxy_addons import records
from proxy_addons.errors import ConfigError
from tasks import builtin
from tasks import evaluation
from tasks import harnesses
from tasks import taskset
from tasks.evaluation import ALL
from tasks.taskset import Task
from tests.tasks.test_behaviour import RECOVERED

NOW = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    folder = tmp_path_factory.mktemp("set") / "set"
    builtin.generate(folder, 0, 6, 6)
    return taskset.load(folder)


def attempt(folder: Path, task: str, sample: int, reward: float | None, **given: Any) -> dict[str, Any]:
    """A try as a stage leaves it: its row, and its calls file beside it."""
    rollout = f"r-e000-{task}-s{sample:02}-t{given.get('try', 0)}"
    calls = [{**call, "rollout": rollout} for call in RECOVERED]
    records.write(str(folder / "calls" / f"{rollout}.parquet"), records.table(calls, records.CALLS))
    row: dict[str, Any] = dict.fromkeys(records.ROLLOUTS.names)
    row |= {"run": "r", "epoch": 0, "task": task, "sample": sample, "try": 0, "rollout": rollout, "kind": "evaluation"}
    row |= {"harness": ("claude_code", "codex")[sample % 2], "reward": reward, "complete": True}
    row |= {"timings": '{"rollout": 2.0}', "prompt_tokens": 1000, "sampled_tokens": 10, "started_at": NOW}
    return row | given


def evaluated(rows: list[dict[str, Any]], tasks: list[Task], folder: Path, k: int = 2, **given: Any) -> Any:
    attempts = evaluation.read_attempts(rows, tasks, folder, given.get("prices"))
    cells = evaluation.by_task(attempts, k)
    return attempts, cells, evaluation.summarise(attempts, cells)


def test_every_harness_gets_every_attempt_at_the_same_tasks(tasks: list[Task]) -> None:
    chosen = [harnesses.load(name) for name in ("claude_code", "codex")]
    groups = evaluation.plan("r", tasks, chosen, "heldout", 4, 3)
    assert [len(group) for group in groups] == [6] * 4
    assert all(slot.task.split == "heldout" for group in groups for slot in group)
    assert [slot.harness.NAME for slot in groups[0]] == ["claude_code", "codex"] * 3
    again = evaluation.plan("other", tasks, chosen[:1], "heldout", 4, 1)
    assert [group[0].task.id for group in again] == [group[0].task.id for group in groups]
    assert len(evaluation.plan("r", tasks, chosen, "all", None, 1)) == 12


def test_more_tasks_than_there_are_is_refused(tasks: list[Task]) -> None:
    with pytest.raises(ConfigError, match="task_count: 7 asked for, the set has 6 of split 'heldout'"):
        evaluation.plan("r", tasks, [], "heldout", 7, 1)


def test_an_attempt_without_a_verdict_is_left_out_and_counted_and_never_0(tasks: list[Task], tmp_path: Path) -> None:
    task = tasks[0].id
    rows = [
        attempt(tmp_path, task, 0, 1.0),
        attempt(tmp_path, task, 2, None, error_class="InfrastructureError", reason="lost"),
        attempt(tmp_path, task, 4, None, error_class="VerifierError", reason="no verdict"),
    ]
    attempts, (cell,), summary = evaluated(rows, tasks, tmp_path)
    assert [(row["scored"], row["success"], row["reward"]) for row in attempts[1:]] == [(False, None, None)] * 2
    assert (cell["scored"], cell["pass_at_1"], cell["pass_at_k"], cell["pass_hat_k"]) == (1, 1.0, None, None)
    found = summary["claude_code"]
    assert found["unscored"] == {"InfrastructureError": 1, "VerifierError": 1}
    assert (found["pass_at_1"]["value"], found["pass_at_k"], found["tasks_below_k"]) == (1.0, None, 1)
    assert [row["format_robustness"] for row in attempts] == [1.0, None, None]


def test_of_an_attempts_tries_the_last_counts(tasks: list[Task], tmp_path: Path) -> None:
    lost = attempt(tmp_path, tasks[0].id, 0, None, error_class="InfrastructureError")
    kept = attempt(tmp_path, tasks[0].id, 0, 0.0, **{"try": 1})
    attempts, (cell,), _ = evaluated([lost, kept], tasks, tmp_path)
    assert [row["rollout"] for row in attempts] == [kept["rollout"]]
    assert (cell["attempts"], cell["scored"], cell["pass_at_1"]) == (1, 1, 0.0)


def test_per_harness_and_together(tasks: list[Task], tmp_path: Path) -> None:
    rewards = {tasks[0].id: (1.0, 0.0, 1.0, 1.0), tasks[1].id: (0.0, 0.0, 0.5, 0.0)}
    rows = [attempt(tmp_path, task, s, reward) for task, found in rewards.items() for s, reward in enumerate(found)]
    _, cells, summary = evaluated(rows, tasks, tmp_path)
    assert len(cells) == 4
    values = {
        name: [found[m]["value"] for m in ("pass_at_1", "pass_at_k", "pass_hat_k")] for name, found in summary.items()
    }
    assert values == {"claude_code": [0.5, 0.5, 0.5], "codex": [0.25, 0.5, 0.0], ALL: [0.375, 0.5, 0.25]}
    assert (summary[ALL]["tasks"], summary[ALL]["succeeded"]["k"], summary[ALL]["succeeded"]["n"]) == (2, 3, 8)
    assert (summary["codex"]["turns"], summary["codex"]["wall_s"], summary["codex"]["prompt_tokens"]) == (4, 2.0, 4000)


def test_cost_is_told_only_with_prices(tasks: list[Task], tmp_path: Path) -> None:
    rows = [attempt(tmp_path, tasks[0].id, 0, 1.0)]
    assert evaluated(rows, tasks, tmp_path)[2][ALL]["cost_usd"] is None
    priced = evaluated(rows, tasks, tmp_path, prices={"prompt": 2.0, "sampled": 100.0})
    assert priced[2][ALL]["cost_usd"] == pytest.approx(0.003)


def test_a_recording_with_a_hole_has_a_verdict_but_no_behaviour(tasks: list[Task], tmp_path: Path) -> None:
    (row,), _, summary = evaluated([attempt(tmp_path, tasks[0].id, 0, 1.0, complete=False)], tasks, tmp_path)
    assert (row["success"], row["turns"], row["format_robustness"]) == (True, None, None)
    assert summary[ALL]["axes"]["format_robustness"] == {"mean": None, "attempts": 0}


def test_recovery_is_from_what_the_task_names_as_misleading_too(tasks: list[Task], tmp_path: Path) -> None:
    """In `RECOVERED` one call failed and was made good; `fine`, where named, misled another, and it did not succeed."""
    rows = [attempt(tmp_path, tasks[0].id, 0, 0.0)]
    for misleading, value in (((), 1.0), (("fine",), 0.5)):
        (row,), _, _ = evaluated(rows, [replace(tasks[0], misleading=misleading)], tmp_path)
        assert row["error_recovery"] == value


def test_two_evaluations_are_compared_on_what_both_measured(tasks: list[Task], tmp_path: Path) -> None:
    def cells(rewards: dict[str, tuple[float, ...]], of: list[Task]) -> Any:
        rows = [attempt(tmp_path, task, 2 * s, r) for task, found in rewards.items() for s, r in enumerate(found)]
        return evaluated(rows, of, tmp_path)[1]

    a, b, c = (task.id for task in tasks[:3])
    first = cells({a: (0.0, 0.0), b: (1.0, 0.0), c: (0.0, 0.0)}, tasks)
    other_c = [replace(task, digest="changed") if task.id == c else task for task in tasks]
    second = cells({a: (1.0, 1.0), b: (1.0, 0.0), c: (1.0, 1.0)}, other_c)
    found = evaluation.compare(first, second)
    assert found["left_out"] == 2
    difference, sign = found[ALL]["pass_at_1"]["difference"], found[ALL]["pass_at_1"]["sign"]
    assert (difference["value"], difference["tasks"]) == (0.5, 2)
    assert (sign["better"], sign["worse"], sign["equal"], sign["p"]) == (1, 0, 1, 1.0)
    more = [{**row, "k": 3} for row in second]
    assert evaluation.compare(first, more)[ALL]["pass_at_k"] is None
    assert evaluation.compare(first, more)[ALL]["pass_at_1"] is not None


def test_what_is_written_can_be_read_and_shows_every_number(tasks: list[Task], tmp_path: Path) -> None:
    rows = [attempt(tmp_path, tasks[0].id, s, r) for s, r in enumerate((1.0, 0.0, None, 1.0))]
    rows[2] |= {"error_class": "InfrastructureError", "reason": "the <node> went"}
    attempts, cells, _ = evaluated(rows, tasks, tmp_path)
    facts: dict[str, Any] = {"run": "r", "policy": "the model tiny", "harnesses": ["codex"], "task_set": "builtin"}
    facts |= {"split": "heldout", "k": 2, "attempts": 2, "compared_with": "r", "comparison": None}
    facts["comparison"] = evaluation.compare(cells, cells)
    page = evaluation.write(tmp_path, attempts, cells, facts).read_text()
    assert evaluation.read_tasks(tmp_path) == cells
    assert records.read(str(tmp_path / "attempts.parquet"), evaluation.ATTEMPTS) == [
        {name: row[name] for name in evaluation.ATTEMPTS.names} for row in attempts
    ]
    summary = json.loads((tmp_path / "summary.json").read_text())
    for line in evaluation.table(summary["results"], 2):
        assert all(value.replace("<", "&lt;") in page for value in line.values()), line
    assert "the &lt;node&gt; went" in page
    assert "Compared with r" in page


def test_a_folder_without_a_finished_evaluation_cannot_be_compared_with(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no finished evaluation"):
        evaluation.read_tasks(tmp_path)
