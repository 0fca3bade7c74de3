"""Data files of several kinds become task folders that load, whose solutions the real verifier rewards."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from proxy_addons.errors import ConfigError
from tasks import taskset
from tasks.importing import Columns
from tasks.importing import import_rows
from tasks.importing import read_mapping
from tasks.importing import rows
from tasks.verify import verify
from tests.tasks.boxes import here
from tests.tasks.boxes import shell

ROWS = [{"q": "What is 1+2?", "a": "Add.\n#### 3"}, {"q": "What is 2*2?", "a": "#### 4"}]
MAPPING = """
name = "sums"
instruction = "{q}\\nWrite it to answer.txt."
answer = "a"
answer_pattern = "#### (.*)"
checker = "CHECKER"
kind = "arithmetic"
split = "heldout"
"""


def source(folder: Path, data: Sequence[dict[str, Any]], name: str = "data.jsonl") -> str:
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(list(data)), folder / name)
    else:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in data))
    return str(folder / name)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "checker"), [("data.jsonl", "exact"), ("data.parquet", "math")])
async def test_a_data_file_becomes_tasks_that_score(name: str, checker: str, tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text(MAPPING.replace("CHECKER", checker))
    mapping = read_mapping(tmp_path / "map.toml")
    out = tmp_path / "set"
    assert import_rows(rows(source(tmp_path, ROWS, name), mapping), mapping, out) == 2
    first, _ = taskset.load(out)
    assert (first.id, first.kind, first.split) == ("sums-00000", "arithmetic", "heldout")
    assert first.instruction == "What is 1+2?\nWrite it to answer.txt."
    for answer, reward in (("3", 1.0), ("4", 0.0)):
        (tmp_path / answer).mkdir()
        (tmp_path / answer / "answer.txt").write_text(answer)
        verdict = await verify(first.folder, tmp_path / answer, 15, here("bubblewrap"))
        assert (verdict.reward, verdict.error_class) == (reward, None)


@pytest.mark.parametrize(("answer", "reward"), [(" 3\n", "1"), ("4", "0"), (None, "0")])
async def test_the_exact_test_sh_is_right_for_others_too(answer: str | None, reward: str, tmp_path: Path) -> None:
    mapping = Columns(name="sums", instruction="{q}", answer="a")
    import_rows([{"q": "1+2", "a": "3"}], mapping, tmp_path / "set")
    (tmp_path / "verdict").mkdir()
    (tmp_path / "workspace").mkdir()
    if answer is not None:
        (tmp_path / "workspace/answer.txt").write_text(answer)
    binds = {
        "binds_ro": {"/tests": tmp_path / "set/sums-00000/tests"},
        "binds_rw": {"/logs/verifier": tmp_path / "verdict"},
    }
    await shell(here("bubblewrap"), tmp_path, "bash /tests/test.sh", **binds)
    assert (tmp_path / "verdict/reward.txt").read_text().strip() == reward


def test_the_solution_is_the_answer(tmp_path: Path) -> None:
    mapping = Columns(name="sums", instruction="{q}", answer="a")
    import_rows([{"q": "1+2", "a": "3"}], mapping, tmp_path / "set")
    subprocess.run(["sh", str(tmp_path / "set/sums-00000/solution/solve.sh")], cwd=tmp_path, check=True)
    assert (tmp_path / "answer.txt").read_text() == "3\n"


def test_the_checker_and_the_test_may_be_columns(tmp_path: Path) -> None:
    mapping = Columns(name="a", instruction="{q}", answer="a", checker="c")
    assert import_rows([{"q": "x", "a": 1, "c": "math"}], mapping, tmp_path / "a") == 1
    assert 'outcome = "math"' in (tmp_path / "a/a-00000/task.toml").read_text()
    mapping = Columns(name="b", instruction="{q}", test="t")
    assert import_rows([{"q": "x", "t": "exit 0"}], mapping, tmp_path / "b") == 1
    assert (tmp_path / "b/b-00000/tests/test.sh").read_text() == "exit 0\n"


def test_all_bad_rows_are_told_and_nothing_is_written(tmp_path: Path) -> None:
    mapping = Columns(name="a", instruction="{q}", answer="a", answer_pattern=re.compile("#### (.*)"), checker="c")
    data = [
        {"q": "x", "a": "#### 1", "c": "exact"},
        {"a": "#### 1", "c": "exact"},
        {"q": "x", "a": "1", "c": "exact"},
        {"q": "x", "a": "#### 1", "c": "luck"},
        {"q": " ", "a": "#### 1", "c": "exact"},
    ]
    with pytest.raises(ConfigError) as found:
        import_rows(data, mapping, tmp_path / "set")
    assert str(found.value).splitlines() == [
        "row 1: has no column 'q'; it has a, c",
        "row 2: answer_pattern does not match the answer '1'",
        "row 3: checker 'luck' is not one of exact, math",
        "row 4: column 'q' is empty",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('name = "A B"\ninstruction = "x"\nanswer = "a"', "name: String should match pattern"),
        ('name = "a"\ninstruction = "x"', "either the column of the answer or the column of the test"),
        ('name = "a"\ninstruction = "x"\nanswer = "a"\nanswer_pattern = "x"', "one group"),
        ('name = "a"\ninstruction = "x"\nanswer = "a"\ncolour = 1', "colour: Extra inputs"),
        ("name = ", "cannot be read"),
    ],
)
def test_a_mapping_that_cannot_be_meant(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text(text)
    with pytest.raises(ConfigError, match=problem) as found:
        read_mapping(tmp_path / "map.toml")
    assert len(str(found.value).splitlines()) == 1


def test_a_file_that_is_no_data_and_a_folder_that_is_there(tmp_path: Path) -> None:
    mapping = Columns(name="a", instruction="{q}", answer="a")
    (tmp_path / "data.txt").write_text("x")
    with pytest.raises(ConfigError, match="a data file ends in one of"):
        list(rows(str(tmp_path / "data.txt"), mapping))
    (tmp_path / "data.jsonl").write_text('{"q": ')
    with pytest.raises(ConfigError, match=r"data set .*data\.jsonl: "):
        list(rows(str(tmp_path / "data.jsonl"), mapping))
    with pytest.raises(ConfigError, match="exists; name a new folder"):
        import_rows([], mapping, tmp_path)


def test_the_command_line_imports_and_validates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "map.json").write_text('{"name": "a", "instruction": "{q}", "answer": "a"}')
    out = tmp_path / "set"
    asked = [
        "import",
        str(tmp_path / "map.json"),
        source(tmp_path, [{"q": "x", "a": "1"}, {"q": "y", "a": "2"}]),
        str(out),
    ]
    assert taskset.main(asked) == 0
    assert capsys.readouterr().out.splitlines() == [f"{out}: 2 tasks", f"{out}/manifest.parquet"]
    assert taskset.main(["validate", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: nothing wrong with 2 tasks\n"
    shutil.copytree(out / "a-00000", out / "a-00009")
    (out / "a-00001/tests/expected.txt").unlink()
    assert taskset.main(["validate", str(out)]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said == ["task a-00001: tests/expected.txt is missing; the answer is compared with it"]
    (out / "a-00001/tests/expected.txt").write_text("2\n")
    assert taskset.main(["validate", str(out)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "task a-00009: is the same, file by file, as a-00000",
        "task a-00009: is not in manifest.parquet",
    ]
