"""Drafts as folders, and the test.sh that compares files, absences and outputs, run by a real bash."""

import os
import subprocess
from pathlib import Path

import pytest

from tasks import taskset
from tasks.curate import draft
from tasks.curate.draft import Draft
from tasks.curate.draft import Labels
from tasks.curate.draft import check

TESTS = check({"out/a.txt": "one\ntwo\n", "empty.txt": ""}, gone=("old.txt",), prints={"grep -c two out/a.txt": "1"})
DRAFT = Draft("Do it.\n", {"old.txt": "x\n", "none.txt": ""}, TESTS, "rm old.txt\n", "python:3.12")
RIGHT = {"out/a.txt": "one\ntwo\n", "empty.txt": ""}


def reward(tests: Path, workspace: Path) -> str:
    out = workspace.parent / "reward.txt"
    environment = os.environ | {"VERIFIER_REWARD_FILE": str(out)}
    subprocess.run(["bash", str(tests / "test.sh")], cwd=workspace, env=environment, check=True)
    return out.read_text().strip()


def test_a_draft_is_written_and_read_again(tmp_path: Path) -> None:
    draft.write(DRAFT, Labels("kind-a", "heldout", 2), tmp_path / "one")
    draft.write(DRAFT, Labels("kind-a", "heldout", 2), tmp_path / "one")
    (task,) = taskset.load(tmp_path)
    assert (task.kind, task.split, task.image, task.agent_timeout_s) == ("kind-a", "heldout", "python:3.12", 300.0)
    found = draft.read(tmp_path / "one")
    assert (found.instruction, found.files, found.solution) == (DRAFT.instruction, DRAFT.files, DRAFT.solution)
    assert set(found.tests) == set(TESTS)


@pytest.mark.parametrize(
    ("workspace", "wanted"),
    [
        (RIGHT, "1"),
        (RIGHT | {"out/a.txt": "one  \n\ntwo\n"}, "1"),  # spaces at the end of a line and blank lines
        (RIGHT | {"more.txt": "x"}, "1"),
        ({}, "0"),
        (RIGHT | {"out/a.txt": "one\ntwo\nthree\n"}, "0"),
        (RIGHT | {"out/a.txt": "two\none\n"}, "0"),
        (RIGHT | {"old.txt": ""}, "0"),
        ({"out/a.txt": "one\ntwo\n"}, "0"),  # that empty.txt is there counts too
    ],
)
def test_the_comparison(workspace: dict[str, str], wanted: str, tmp_path: Path) -> None:
    draft.write(DRAFT, Labels("k", "train", 1), tmp_path / "one")
    place = tmp_path / "workspace"
    for path, text in workspace.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    place.mkdir(exist_ok=True)
    assert reward(tmp_path / "one/tests", place) == wanted


@pytest.mark.parametrize(("command", "wanted"), [("echo 2", "1"), ("echo 3", "0"), ("echo 2; exit 1", "0"), ("", "0")])
def test_a_command_must_print_the_text_and_end_well(command: str, wanted: str, tmp_path: Path) -> None:
    tests = check(prints={"bash run.sh": "2\n"})
    draft.write(Draft("Do.", {}, tests, "true"), Labels("k", "train", 1), tmp_path / "one")
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/run.sh").write_text(command)
    assert reward(tmp_path / "one/tests", tmp_path / "workspace") == wanted
