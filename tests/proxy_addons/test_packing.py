import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from proxy_addons import packing
from proxy_addons import records
from proxy_addons.packing import has_calls
from proxy_addons.packing import pack
from proxy_addons.packing import read_calls


def own_file(folder: Path, rollout: str, calls: int = 3) -> Path:
    """A rollout's calls file, as the proxy leaves it."""
    rows = [{"rollout": rollout, "call": n, "prompt_delta_ids": [n] * 50, "findings": []} for n in range(calls)]
    path = folder / f"{rollout}.parquet"
    records.write(str(path), records.table(rows, records.CALLS))
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def packed(folder: Path) -> list[str]:
    return [name for name in names(folder) if name.startswith("packed_")]


def test_every_rollout_reads_the_same_before_and_after(tmp_path: Path) -> None:
    paths = [own_file(tmp_path, f"r-{n:02}") for n in range(20)]
    before = [read_calls(str(path)) for path in paths]
    assert pack(str(tmp_path)) == 20
    assert names(tmp_path) == packed(tmp_path)
    assert len(packed(tmp_path)) == 1
    assert [read_calls(str(path)) for path in paths] == before
    assert read_calls(str(paths[3]), ["call"]) == [{"call": n} for n in range(3)]
    assert all(has_calls(str(path)) for path in paths)
    assert not has_calls(str(tmp_path / "r-99.parquet"))
    with pytest.raises(FileNotFoundError, match="no calls of r-99"):
        read_calls(str(tmp_path / "r-99.parquet"))
    assert pyarrow.dataset.dataset(tmp_path, format="parquet").count_rows() == 60


def test_o70_packing_again_changes_nothing_and_new_rollouts_get_a_file_of_their_own(tmp_path: Path) -> None:
    for n in range(4):
        own_file(tmp_path, f"r-{n}")
    pack(str(tmp_path))
    first = names(tmp_path)
    assert pack(str(tmp_path)) == 4
    assert names(tmp_path) == first
    own_file(tmp_path, "r-4")
    assert pack(str(tmp_path)) == 5
    assert len(packed(tmp_path)) == 2
    assert pyarrow.dataset.dataset(tmp_path, format="parquet").count_rows() == 15


def test_files_and_row_groups_are_bounded(tmp_path: Path) -> None:
    sizes = [own_file(tmp_path, f"r-{n}").stat().st_size for n in range(9)]
    pack(str(tmp_path), file_bytes=3 * max(sizes), row_group_bytes=1500)
    files = [pq.ParquetFile(tmp_path / name) for name in packed(tmp_path)]
    assert len(files) == 3
    assert all(file.metadata.num_row_groups > 1 for file in files)


def test_what_cannot_be_packed_stays_as_it_is(tmp_path: Path) -> None:
    own_file(tmp_path, "good")
    own_file(tmp_path, "empty", calls=0)
    (tmp_path / "torn.parquet").write_bytes(own_file(tmp_path, "torn").read_bytes()[:-9])
    own_file(tmp_path, "other").rename(tmp_path / "misnamed.parquet")
    newer = pq.read_table(own_file(tmp_path, "newer")).append_column("new", [[1, 2, 3]])
    records.write(str(tmp_path / "newer.parquet"), newer)
    (tmp_path / ".left.parquet.0.tmp").write_bytes(b"half")
    (tmp_path / ".live.ledger").write_text("{}")
    assert pack(str(tmp_path)) == 1
    left = [".left.parquet.0.tmp", ".live.ledger", "empty.parquet", "misnamed.parquet", "newer.parquet", "torn.parquet"]
    assert [name for name in names(tmp_path) if name not in packed(tmp_path)] == left
    assert read_calls(str(tmp_path / "empty.parquet")) == []


def test_an_older_file_is_packed_into_the_present_schema(tmp_path: Path) -> None:
    path = own_file(tmp_path, "old")
    records.write(str(path), pq.read_table(path).drop_columns(["raw_ref"]))
    pack(str(tmp_path))
    assert pq.read_schema(tmp_path / packed(tmp_path)[0]).equals(records.CALLS)
    assert [row["raw_ref"] for row in read_calls(str(path))] == [None] * 3


def test_a_folder_that_is_not_there_has_nothing_to_pack(tmp_path: Path) -> None:
    assert pack(str(tmp_path / "none")) == 0


_KILLED = """
import os, signal, sys
from fsspec.implementations.local import LocalFileSystem
from proxy_addons.packing import pack
left = int(sys.argv[2])
def counted(real):
    def step(*args, **named):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return real(*args, **named)
    return step
for name in ("mv", "rm"):
    setattr(LocalFileSystem, name, counted(getattr(LocalFileSystem, name)))
os.fsync = counted(os.fsync)
pack(sys.argv[1])
"""


@pytest.mark.parametrize("step", range(6))
def test_o67_a_crash_at_any_step_loses_nothing_and_the_next_run_finishes(tmp_path: Path, step: int) -> None:
    paths = [own_file(tmp_path, f"r-{n}") for n in range(3)]
    before = [read_calls(str(path)) for path in paths]
    done = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path), str(step)], cwd=Path.cwd(), check=False)
    assert done.returncode == -9
    assert [read_calls(str(path)) for path in paths] == before
    assert pack(str(tmp_path)) == 3
    assert [name for name in names(tmp_path) if not name.startswith(".")] == packed(tmp_path)
    assert [read_calls(str(path)) for path in paths] == before


def test_a_failed_write_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    paths = [own_file(tmp_path, f"r-{n}") for n in range(3)]
    monkeypatch.setattr(packing.records, "write_all", fail)
    with pytest.raises(OSError, match="disk full"):
        pack(str(tmp_path))
    assert names(tmp_path) == [path.name for path in paths]
