"""Decisions on disk: what is known is not decided again, what is torn or changed is."""

from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from tasks import taskset
from tasks.curate.decisions import decide_all
from tasks.curate.draft import Draft
from tasks.curate.draft import Labels
from tasks.curate.draft import write
from tasks.taskset import Task


class Judge:
    """Drops what is called bad, and remembers whom it was asked about."""

    def __init__(self, failures: int = 0) -> None:
        self.asked: list[str] = []
        self._failures = failures

    async def __call__(self, task: Task) -> str | None:
        self.asked.append(task.id)
        if len(self.asked) <= self._failures:
            raise InfrastructureError("the sandbox was lost")
        if task.id == "odd":
            raise ConfigError("tests/expected.txt is missing")
        return "bad: it is" if task.id == "bad" else None


@pytest.fixture
def tasks(tmp_path: Path) -> list[Task]:
    for name in ("bad", "good", "odd"):
        write(Draft("Do it.", {}, {"test.sh": "true"}, "true"), Labels("k", "train", 1), tmp_path / "set" / name)
    return taskset.load(tmp_path / "set")


async def test_what_is_known_is_not_decided_again(tasks: list[Task], tmp_path: Path) -> None:
    file, judge = tmp_path / "round/tested.jsonl", Judge()
    first = await decide_all(tasks, judge, file, 2)
    assert first == {"bad": "bad: it is", "odd": "not_scorable: tests/expected.txt is missing"}
    assert await decide_all(tasks, judge, file, 2) == first
    assert sorted(judge.asked) == ["bad", "good", "odd"]


async def test_a_torn_line_and_a_changed_task_are_decided_anew(tasks: list[Task], tmp_path: Path) -> None:
    file = tmp_path / "tested.jsonl"
    before = await decide_all(tasks, Judge(), file, 1)
    file.write_bytes(file.read_bytes()[:-9])  # the last one, `odd`
    (tasks[0].folder / "instruction.md").write_text("Do it now.")
    judge = Judge()
    for _ in range(2):
        assert await decide_all(taskset.load(tasks[0].folder.parent), judge, file, 1) == before
    assert judge.asked == ["bad", "odd"]


async def test_our_own_failures_are_tried_again_and_never_a_decision(tasks: list[Task], tmp_path: Path) -> None:
    judge = Judge(failures=2)
    await decide_all(tasks, lambda task: judge(task), tmp_path / "a.jsonl", 1)
    assert judge.asked == ["bad", "bad", "bad", "good", "odd"]
    with pytest.raises(InfrastructureError, match="the sandbox was lost"):
        await decide_all(tasks, Judge(failures=99), tmp_path / "b.jsonl", 1)
    assert (tmp_path / "b.jsonl").read_text() == ""
