"""Filling a round's folder from a proposer, and making a task set of what stays."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from proxy_addons.errors import InfrastructureError
from tasks import taskset
from tasks.curate.draft import Draft
from tasks.curate.draft import Unusable
from tasks.curate.taskfolders import collect
from tasks.curate.taskfolders import propose
from tasks.curate.wishes import Wish
from tasks.curate.wishes import first


class Listed:
    """Proposes what it is told to, and remembers for whom, and from which parent."""

    levels: Mapping[str, int] = {"k": 3}
    at_once = 2

    def __init__(self, refused: str = "", lost: str = "") -> None:
        self.asked: dict[str, Path | None] = {}
        self._refused, self._lost = refused, lost

    async def propose(self, wish: Wish, parent: Path | None) -> Draft:
        self.asked[wish.task] = parent
        if wish.task == self._refused:
            raise Unusable("unreadable: no")
        if wish.task == self._lost:
            raise InfrastructureError("away")
        return Draft(f"Do {wish.task}.", {}, {"test.sh": "true"}, "true")


WISHES = first(3, 0, Listed.levels, 0.0)


async def test_what_lies_there_is_not_proposed_again(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"^away$"):
        await propose(tmp_path, WISHES, Listed(lost="k-0002"), {})
    there = {folder.name for folder in tmp_path.iterdir()}
    again = Listed(refused="k-0002")
    assert await propose(tmp_path, WISHES, again, {}) == {"k-0002": "unreadable: no"}
    assert set(again.asked) == {wish.task for wish in WISHES} - there
    assert [task.instruction for task in taskset.load(tmp_path)] == ["Do k-0000.", "Do k-0001."]


async def test_a_refinement_gets_its_parents_folder(tmp_path: Path) -> None:
    wish = WISHES[0].model_copy(update={"task": "k-0000-r1", "parent": "k-0000"})
    proposer = Listed()
    await propose(tmp_path, [wish], proposer, {"k-0000": tmp_path / "before/k-0000"})
    assert proposer.asked == {"k-0000-r1": tmp_path / "before/k-0000"}


async def test_a_set_is_made_anew_with_its_manifest(tmp_path: Path) -> None:
    await propose(tmp_path / "proposed", WISHES, Listed(), {})
    tasks = taskset.load(tmp_path / "proposed")
    for some in (tasks, tasks[1:]):
        folder = collect(some, tmp_path / "set")
        assert taskset.validate(folder) == []
        assert [task.digest for task in taskset.load(folder)] == [task.digest for task in some]
    (folder / "k-0001/instruction.md").write_text("Do something else.")
    assert "is not the version that manifest.parquet names" in taskset.validate(folder)[0]
