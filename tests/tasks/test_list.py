from pathlib import Path

import pytest

from tasks import adapters
from tasks import list as task_list
from tests.tasks.adapters import checkout


def test_every_known_set_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert task_list.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["builtin", "FOLDER", *adapters.NAMES]
    assert all("not given: name " in line for line in lines[2:])


def test_a_set_that_was_given_says_what_runs_and_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"claweval:{checkout.make(tmp_path / 'checkout')}"
    assert task_list.main([source, "--tasks"]) == 0
    out = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(out) if line.startswith("claweval"))
    name, count, *_ = out[at].split()
    assert (name, count) == ("claweval", "2")
    assert out[at].endswith("1 can run here; missing: judge (1 task)")
    assert out[at + 1].split() == [
        "t1-find-twice-paid",
        *["service", "ledger,", "file", "fixtures/notes.txt,", "file", "fixtures/count.py"],
    ]
    assert out[at + 2].split() == ["t2-judged", "judge", "(missing)"]
    assert out[at + 3].startswith("    missing: judge (1 task): name a model")


@pytest.mark.parametrize(
    ("source", "said"),
    [("tasks", "spell it NAME:FOLDER"), ("x:tasks", "no such benchmark"), ("osworld:/nowhere", "is not there; give ")],
)
def test_a_mistake_is_one_line(source: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert task_list.main([source]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
