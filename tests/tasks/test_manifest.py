from pathlib import Path

import pyarrow.parquet as pq

from tasks import manifest
from tasks import taskset
from tests.tasks.test_taskset import make


def test_the_manifest_names_each_task_and_its_version(tmp_path: Path) -> None:
    folder = make(tmp_path)
    file = manifest.write(tmp_path, taskset.load(tmp_path))
    (row,) = pq.read_table(file).to_pylist()
    assert (row["task"], row["split"], row["digest"]) == ("one-1", "heldout", taskset.digest(folder))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.parquet", "one-1"]
    assert manifest.differences(tmp_path, taskset.load(tmp_path)) == []


def test_another_version_one_too_many_and_one_too_few(tmp_path: Path) -> None:
    for name in ("kept", "gone", "edited"):
        make(tmp_path, name)
    tasks = taskset.load(tmp_path)
    manifest.write(tmp_path, tasks)
    (tmp_path / "gone").rename(tmp_path / "new")
    (tmp_path / "edited/tests/test.sh").write_text("exit 1\n")
    lines = manifest.differences(tmp_path, taskset.load(tmp_path))
    assert [line.split(" is ")[0] for line in lines] == ["task gone:", "task new:", "task edited:"]


def test_a_torn_manifest_is_told_and_none_is_no_problem(tmp_path: Path) -> None:
    make(tmp_path)
    tasks = taskset.load(tmp_path)
    assert manifest.differences(tmp_path, tasks) == []
    (tmp_path / manifest.NAME).write_bytes(b"PAR1")
    (line,) = manifest.differences(tmp_path, tasks)
    assert "cannot be read; write it anew: python -m tasks.taskset manifest" in line
