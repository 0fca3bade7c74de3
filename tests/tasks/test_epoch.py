import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from typing import cast

import pytest

from proxy_addons import records
from proxy_addons.errors import ConfigError
from tasks import harnesses
from tasks.deadline import Deadline
from tasks.epoch import check_progress
from tasks.epoch import merge
from tasks.epoch import plan_heldout
from tasks.epoch import plan_training
from tasks.epoch import run_group
from tasks.epoch import stage
from tasks.epoch import staleness
from tasks.rollout import Arena
from tasks.rollout import Slot
from tasks.rollout import calls_path
from tasks.rollout import row_path
from tasks.taskset import Task
from tests.support.calls import Recording

BOTH = [harnesses.load("claude_code"), harnesses.load("codex")]


def tasks(train: int, heldout: int = 0) -> list[Task]:
    def one(n: int, split: str) -> Task:
        return Task(f"{split}-{n}", "kind", split, "do it", Path("/none"), 1.0, 1.0, "digest")

    return [one(n, "train") for n in range(train)] + [one(n, "heldout") for n in range(heldout)]


def test_every_task_comes_once_before_any_comes_again() -> None:
    names = [
        group[0].task.id
        for epoch in (1, 2, 3, 4)
        for group in plan_training("r", epoch, 7, tasks(8), BOTH, count=4, size=2)
    ]
    assert sorted(names[:8]) == sorted(names[8:]) == sorted(t.id for t in tasks(8))
    assert names[:8] != names[8:]


def test_a_plan_depends_on_seed_and_epoch_alone() -> None:
    def plan(epoch: int, seed: int) -> list[Any]:
        groups = plan_training("r", epoch, seed, tasks(50), BOTH, 4, 3)
        return [(slot.rollout.id, slot.harness.NAME) for group in groups for slot in group]

    assert plan(2, 1) == plan(2, 1)
    assert plan(2, 1) != plan(2, 2)
    assert plan(2, 1) != plan(3, 1)


def test_a_group_has_one_harness_and_the_harnesses_take_turns() -> None:
    groups = plan_training("r", 1, 0, tasks(9), BOTH, 4, 3)
    assert all(len({slot.harness.NAME for slot in group}) == 1 for group in groups)
    assert Counter(group[0].harness.NAME for group in groups) == {"claude_code": 2, "codex": 2}
    assert len({slot.rollout.id for group in groups for slot in group}) == 12


def test_heldout_tasks_are_the_same_in_every_run_and_never_trained() -> None:
    before = plan_heldout("a", 0, "heldout_before", tasks(4, 20), BOTH, 6, 2)
    after = plan_heldout("b", 9, "heldout_after", tasks(4, 20), BOTH, 6, 2)
    assert [g[0].task for g in before] == [g[0].task for g in after]
    assert {g[0].task.split for g in before} == {"heldout"}
    assert [slot.harness.NAME for slot in before[0]] == ["claude_code", "codex"]


def test_too_few_heldout_tasks_is_said_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="heldout_tasks: 6 asked for, the set has 2"):
        plan_heldout("a", 0, "heldout_before", tasks(4, 2), BOTH, 6, 2)


async def test_what_a_group_has_on_record_counts_for_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (group,) = plan_training("r", 1, 0, tasks(1), BOTH, count=1, size=4)
    for slot, reward in zip(group, (1.0, 0.0), strict=False):
        recording = Recording(slot.rollout.sample, task=slot.task.id)
        recording.call(None, [1], [2])
        records.write(str(calls_path(tmp_path, slot.rollout)), records.table(recording.calls, records.CALLS))
        row = {"rollout": slot.rollout.id, "reward": reward}
        records.write(str(row_path(tmp_path, slot.rollout)), records.table([row], records.ROLLOUTS))
    filled = []

    async def fill(slot: Slot, arena: Arena, deadline: Deadline) -> dict[str, Any]:
        filled.append(slot)
        await deadline.passed()
        return {"reward": None}

    monkeypatch.setattr("tasks.epoch.fill", fill)
    arena = cast(Arena, SimpleNamespace(folder=tmp_path, tries=1))
    manifest = await run_group(group, arena, 0.01)
    assert filled == group[2:]
    assert (manifest["ran"], manifest["rewards"]) == (2, [1.0, 0.0, None, None])


def test_a_try_of_before_a_resume_does_not_replace_the_one_that_filled_its_slot(tmp_path: Path) -> None:
    """All tries of the first execution broke; the second one begins with the first try again, which comes to an end."""
    (group,) = plan_training("r", 1, 0, tasks(1), BOTH, 1, 2)
    for slot, first in zip(group, (None, "InfrastructureError"), strict=True):
        rollout = slot.rollout
        for error in (first, "InfrastructureError"):
            row = {"rollout": rollout.id, "try": rollout.try_, "error_class": error}
            records.write(str(row_path(tmp_path, rollout)), records.table([row], records.ROLLOUTS))
            rollout = rollout.next_try()
    found = merge(tmp_path, [group], 2)
    assert [(row["try"], row["error_class"]) for row in found] == [
        (0, None),
        (0, "InfrastructureError"),
        (1, "InfrastructureError"),
    ]
    assert records.read(str(tmp_path / "rollouts.parquet"), records.ROLLOUTS) == found


def test_staleness_counts_rollouts_with_a_reward_by_the_oldest_weights_in_them() -> None:
    rows: list[dict[str, Any]] = [{"reward": 1.0, "weight_version": 3}, {"reward": 0.0, "weight_version": 2}] * 2
    rows += [{"reward": None, "weight_version": 1}, {"reward": 0.0, "weight_version": None}]
    assert staleness(rows, 3) == {0: 2, 1: 2}


def test_o63_a_stage_without_any_progress_ends_with_the_reason() -> None:
    rows = [{"error_class": "InfrastructureError", "reason": "tool parser not set"}] * 3
    with pytest.raises(ConfigError, match="all 3 rollouts failed; most often: tool parser not set"):
        check_progress(rows, "rollout")
    check_progress([*rows, {"error_class": None, "reason": "ok"}], "rollout")


def test_a_stage_that_fails_is_not_recorded_as_done(tmp_path: Path) -> None:
    with stage(tmp_path, "rollout", 1) as facts:
        facts["owed"] = 3
    with pytest.raises(RuntimeError), stage(tmp_path, "train", 1):
        raise RuntimeError
    lines = [json.loads(line) for line in (tmp_path / "stages.jsonl").read_text().splitlines()]
    assert [(line["stage"], line["epoch"], line.get("owed")) for line in lines] == [("rollout", 1, 3)]
