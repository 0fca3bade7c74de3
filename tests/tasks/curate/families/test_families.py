"""Every family at every level: what it draws is a task, its draws are its seed's, and its own solution is right.

That a draw may ask for nothing is meant (`tasks.curate.families`); that its solution is wrong is not.
"""

import asyncio
import random
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tasks import taskset
from tasks.curate import draft
from tasks.curate.canaries import why_dropped
from tasks.curate.draft import Labels
from tasks.curate.families import FAMILIES
from tests.tasks.boxes import here

CELLS = [(name, level) for name, family in FAMILIES.items() for level in range(1, family.levels + 1)]


def test_there_are_many_and_their_names_can_be_part_of_a_rollouts() -> None:
    assert len(FAMILIES) >= 12
    assert max(len(name) for name in FAMILIES) <= 20


@pytest.mark.parametrize(("name", "level"), CELLS)
def test_a_draw_is_a_valid_task_and_the_same_for_the_same_seed(name: str, level: int, tmp_path: Path) -> None:
    for seed in range(20):
        found = [FAMILIES[name].make(random.Random(seed), level, "train") for _ in range(2)]
        assert found[0] == found[1]
        draft.write(found[0], Labels(name, "train", level), tmp_path / f"task-{seed}")
    tasks = taskset.load(tmp_path)
    assert {task.kind for task in tasks} == {name}
    assert len({task.digest for task in tasks}) > 10


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", FAMILIES)
async def test_what_is_drawn_can_be_solved_as_it_says(name: str, tmp_path: Path) -> None:
    sandbox = here("bubblewrap")
    for level in range(1, FAMILIES[name].levels + 1):
        made = FAMILIES[name].make(random.Random(f"{name}-{level}"), level, "train")
        draft.write(made, Labels(name, "train", level), tmp_path / f"level-{level}")
    tasks = taskset.load(tmp_path)
    reasons = await asyncio.gather(*(why_dropped(task, sandbox) for task in tasks))
    dropped = Counter(reason.split(":")[0] for reason in reasons if reason)
    # A no-op may pass by chance, not always. Everything else would be a family's own bug.
    assert set(dropped) <= {"noop_scores"}, reasons
    assert dropped.total() < len(tasks), reasons


@pytest.mark.timeout(60)
@pytest.mark.parametrize("level", [1, 2, 3])
async def test_the_first_answer_of_a_stale_report_is_worth_nothing(level: int, tmp_path: Path) -> None:
    made = FAMILIES["stale-report"].make(random.Random(level), level, "train")
    first = replace(made, solution=made.solution.replace(" --fresh", ""))
    for name, each in (("careful", made), ("first", first)):
        draft.write(each, Labels("stale-report", "train", level), tmp_path / name)
    said = [await why_dropped(task, here("bubblewrap"), repeats=1) for task in taskset.load(tmp_path)]
    assert said == [None, "solution_scores: 0, not 1"]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_stale_report_names_what_misleads_in_it(level: int, tmp_path: Path) -> None:
    for seed in range(10):
        made = FAMILIES["stale-report"].make(random.Random(seed), level, "train")
        draft.write(made, Labels("stale-report", "train", level), tmp_path / f"task-{seed}")
        (script,) = (name for name in made.files if name.endswith(".sh"))
        stale, fresh = (
            subprocess.run(
                ["sh", script, *option], cwd=tmp_path / f"task-{seed}/environment", capture_output=True, text=True
            ).stdout
            for option in ((), ("--fresh",))
        )
        assert len(made.misleading) >= 2
        assert all(text in stale and text not in fresh for text in made.misleading)
    assert all(len(task.misleading) >= 2 for task in taskset.load(tmp_path))
