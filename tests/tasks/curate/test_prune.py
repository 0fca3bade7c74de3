"""Pruning: each reason once, and who gives way to whom."""

from pathlib import Path

from tasks import taskset
from tasks.curate.draft import Draft
from tasks.curate.draft import Labels
from tasks.curate.draft import check
from tasks.curate.draft import write
from tasks.curate.prune import Limits
from tasks.curate.prune import Pruned
from tasks.curate.prune import prune
from tasks.taskset import Task

SAY = "Count the lines of data/{}.txt that contain the word amber, and write the number of them to answer.txt."
LIMITS = Limits(instruction_chars=200, folder_bytes=20_000, likeness=0.8)


def make(root: Path, name: str, say: str, solution: str = "echo 1 > answer.txt", split: str = "train") -> Path:
    write(Draft(say, {"a.txt": "a\n"}, check({"answer.txt": "1"}), solution), Labels("k", split, 1), root / name)
    return root / name


def pruned(*folders: Path, kept: tuple[Task, ...] = (), **evaluated: str) -> Pruned:
    return prune(folders, kept, evaluated, LIMITS)


def ids(found: Pruned) -> list[str]:
    return [task.id for task in found.tasks]


def task(folder: Path) -> Task:
    found, problems = taskset.read(folder)
    assert found, problems
    return found


def test_the_earlier_of_two_that_are_alike_stays(tmp_path: Path) -> None:
    folders = [make(tmp_path, name, SAY.format(name)) for name in ("one", "two")]
    found = pruned(*folders)
    assert ids(found) == ["one"]
    assert found.dropped["two"].startswith("near_duplicate: instruction and solution are ")
    assert found.dropped["two"].endswith("those of one")
    assert pruned(folders[1], kept=(task(folders[0]),)).dropped == found.dropped


def test_the_same_words_for_another_piece_of_work_are_no_duplicate(tmp_path: Path) -> None:
    folders = [
        make(tmp_path, "one", "Mend the failing test.", "sed -i 's/a/b/' lib/first.py && rm -r old"),
        make(tmp_path, "two", "Mend the failing test.", "printf 'x = 1' > settings/second.py; make clean; touch done"),
    ]
    assert ids(pruned(*folders)) == ["one", "two"]


def test_a_task_to_train_on_gives_way_to_a_held_out_one_that_comes_later(tmp_path: Path) -> None:
    other = "rm -r build; printf 'this is solved in an altogether different way' > answer.txt"
    folders = [
        make(tmp_path, "one", SAY.format("one"), other),
        make(tmp_path, "two", SAY.format("two"), split="heldout"),
    ]
    found = pruned(*folders)
    assert ids(found) == ["two"]
    assert found.dropped["one"].startswith("contaminated: its instruction is ")


def test_what_is_evaluated_elsewhere_is_in_neither_split(tmp_path: Path) -> None:
    known = task(make(tmp_path / "set", "known", SAY.format("old")))
    folders = [make(tmp_path, "one", SAY.format("one")), make(tmp_path, "two", SAY.format("two"), split="heldout")]
    found = prune(folders, (), {"evals/known": known.instruction}, LIMITS)
    assert not found.tasks
    assert all(why.endswith("that of evals/known") for why in found.dropped.values())
    assert {why.split(":")[0] for why in found.dropped.values()} == {"contaminated"}


def test_what_its_own_files_tell(tmp_path: Path) -> None:
    folders = [
        make(tmp_path, "long", "word " * 50),
        make(tmp_path, "large", "Sort it."),
        make(tmp_path, "unsolved", "Rename all of the files."),
        make(tmp_path, "broken", "Delete what is empty."),
        make(tmp_path, "good", "Find the largest one."),
    ]
    (folders[1] / "environment/big.bin").write_bytes(b"x" * 30_000)
    (folders[2] / "solution/solve.sh").unlink()
    (folders[3] / "tests/test.sh").unlink()
    found = pruned(*folders)
    assert ids(found) == ["good"]
    assert {name: why.split(":")[0] for name, why in found.dropped.items()} == {
        "long": "too_long",
        "large": "too_large",
        "unsolved": "no_solution",
        "broken": "not_valid",
    }
    assert found.dropped["broken"] == "not_valid: tests/test.sh is missing; it writes the reward"
