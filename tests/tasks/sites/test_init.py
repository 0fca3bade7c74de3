"""The sites' tasks as a task set."""

import subprocess
import sys
from pathlib import Path

import pytest

from tasks import sites
from tasks import taskset
from tasks.curate.canaries import check_all
from tasks.run import ROOT
from tasks.sandboxes import choose


def test_every_site_has_a_task_on_either_side_and_nothing_is_wrong_with_them(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "tasks.sites", str(tmp_path / "set")], cwd=ROOT)
    assert done.returncode == 0 and taskset.validate(tmp_path / "set") == []
    tasks = taskset.load(tmp_path / "set")
    kinds = ("form", "search", "shop")
    assert sorted((task.kind, task.split) for task in tasks) == [(k, s) for k in kinds for s in ("heldout", "train")]
    sites.generate(tmp_path / "again")
    assert [task.digest for task in taskset.load(tmp_path / "again")] == [task.digest for task in tasks]


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_each_is_solved_by_its_solution_and_not_by_doing_nothing(tmp_path: Path) -> None:
    sites.generate(tmp_path)
    assert await check_all(taskset.load(tmp_path), choose("auto"), at_once=2) == {}
