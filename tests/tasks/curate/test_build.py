"""Building in a real sandbox: what can be run, and the ways in which it cannot."""

from pathlib import Path

import pytest

from tasks import taskset
from tasks.curate.build import why_dropped
from tasks.curate.draft import Draft
from tasks.curate.draft import Labels
from tasks.curate.draft import write
from tests.tasks.boxes import here


def make(root: Path, test: str = "echo 1", solution: str = "true") -> taskset.Task:
    write(Draft("Do it.", {"a.txt": "a"}, {"test.sh": test}, solution), Labels("k", "train", 1), root / "one")
    return taskset.load(root)[0]


@pytest.mark.parametrize(
    ("test", "solution", "reason"),
    [
        ("echo 1", "exit 7", None),  # it is read, not run
        ("if true; then echo 1", "true", "not_a_script: /task/tests/test.sh: line"),
        ("echo 1", "cat <(echo", "not_a_script: /task/solution/solve.sh: line"),
    ],
)
async def test_scripts_are_read_by_their_shell(test: str, solution: str, reason: str | None, tmp_path: Path) -> None:
    said = await why_dropped(make(tmp_path, test, solution), here("bubblewrap"))
    assert said is None if reason is None else said is not None and said.startswith(reason), said


async def test_a_repository_that_cannot_be_read_makes_no_workspace(tmp_path: Path) -> None:
    task = make(tmp_path)
    (task.environment / ".git").mkdir()
    (task.environment / ".git/HEAD").write_text("nonsense")
    said = await why_dropped(task, here("bubblewrap"))
    assert said is not None and said.startswith("no_workspace: repository "), said
