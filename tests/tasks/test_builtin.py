import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tasks import builtin
from tasks import taskset
from tasks.taskset import Task

COUNTS = {"train": 24, "heldout": 12}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    out = tmp_path_factory.mktemp("builtin") / "set"
    builtin.generate(out, seed=3, **COUNTS)
    return taskset.load(out)


def verify(task: Task, workspace: Path) -> str:
    reward = workspace.parent / f"{task.id}.reward"
    subprocess.run(
        ["sh", str(task.tests / "test.sh")],
        cwd=workspace,
        env={"PATH": os.environ["PATH"], "VERIFIER_REWARD_FILE": str(reward)},
        check=True,
        timeout=task.verifier_timeout_s,
        capture_output=True,
    )
    return reward.read_text().strip()


def copy(task: Task, tmp_path: Path) -> Path:
    return Path(shutil.copytree(task.environment, tmp_path / task.id))


def test_the_solution_earns_the_reward(tasks: list[Task], tmp_path: Path) -> None:
    for task in tasks:
        workspace = copy(task, tmp_path)
        subprocess.run(["sh", str(task.folder / "solution/solve.sh")], cwd=workspace, timeout=10)
        if task.kind == "recover":
            assert (workspace / "answer.txt").exists()
        assert verify(task, workspace) == "1", task.id


def test_doing_nothing_earns_nothing(tasks: list[Task], tmp_path: Path) -> None:
    assert {verify(task, copy(task, tmp_path)) for task in tasks} == {"0"}


def test_writing_every_word_of_the_workspace_earns_nothing(tasks: list[Task], tmp_path: Path) -> None:
    for task in tasks:
        workspace = copy(task, tmp_path)
        subprocess.run(["sh", "-c", "cat */* > answer.txt"], cwd=workspace, timeout=10)
        assert verify(task, workspace) == "0", task.id


def test_kinds_and_splits_are_as_asked(tasks: list[Task]) -> None:
    assert Counter(t.split for t in tasks) == COUNTS
    assert {(t.kind, t.split) for t in tasks} == {(k, s) for k in builtin.KINDS for s in builtin.SPLITS}


def test_equal_seeds_give_equal_bytes_and_other_seeds_do_not(tmp_path: Path) -> None:
    sets = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        builtin.generate(tmp_path / name, seed=seed, train=6, heldout=6)
        sets.append([t.digest for t in taskset.load(tmp_path / name)])
    assert sets[0] == sets[1]
    assert not set(sets[0]) & set(sets[2])


def test_no_path_and_no_search_of_a_heldout_task_is_in_a_training_task(tasks: list[Task]) -> None:
    places: dict[str, set[str]] = {"train": set(), "heldout": set()}
    for task in tasks:
        files = [p.relative_to(task.environment) for p in task.environment.rglob("*") if p.is_file()]
        places[task.split] |= {str(file.with_suffix("")) for file in files}
        if searched := re.search(r"'([a-z]+)'", task.instruction):
            places[task.split].add(f"{files[0].parent}/{searched[1]}")
    assert len(places["train"]) > len(places["heldout"]) > COUNTS["heldout"]
    assert not places["train"] & places["heldout"]


def test_all_tasks_differ(tasks: list[Task]) -> None:
    assert len({t.digest for t in tasks}) == len({t.instruction for t in tasks}) == len(tasks)
