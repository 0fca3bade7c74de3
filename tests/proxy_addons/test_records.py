import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from proxy_addons import records


def row(**more: object) -> dict[str, object]:
    return {"schema_version": 1, "rollout": "r", "call": 0, "prompt_delta_ids": [1], "findings": []} | more


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "calls.parquet")
    rows = [row(), row(call=1, sampled_ids=[2, 3], sampled_logprobs=[-0.5, None])]
    records.write(path, records.table(rows, records.CALLS))
    read = records.read(path, records.CALLS)
    assert read[0]["sampled_ids"] is None
    assert read[1]["sampled_logprobs"] == [-0.5, None]
    assert pq.read_schema(path).equals(records.CALLS)


def test_o68_a_key_that_the_schema_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="tool_calls"):
        records.table([row(), row(tool_calls=[])], records.CALLS)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 half of a file"])
def test_o65_a_torn_file_is_not_whole_and_does_not_raise(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "torn.parquet"
    path.write_bytes(content)
    assert not records.is_whole(str(path))


def test_o65_a_missing_file_is_not_whole(tmp_path: Path) -> None:
    assert not records.is_whole(str(tmp_path / "none.parquet"))


def test_o65_a_file_cut_anywhere_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    records.write(str(path), records.table([row(call=n) for n in range(50)], records.CALLS))
    whole = path.read_bytes()
    assert records.is_whole(str(path))
    for length in range(0, len(whole), 997):
        path.write_bytes(whole[:length])
        assert not records.is_whole(str(path))


def test_o67_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", fail)
    with pytest.raises(OSError, match="disk full"):
        records.write(str(tmp_path / "x.parquet"), records.table([row()], records.CALLS))
    assert list(tmp_path.iterdir()) == []


def test_o70_the_same_file_written_twice_has_its_rows_once(tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    for _ in range(2):
        records.write(path, records.table([row()], records.CALLS))
    assert len(records.read(path, records.CALLS)) == 1


def test_o71_row_groups_are_bounded_by_bytes(tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    sizes = [1000, 1000, 1000, 9000, 1000]
    rows = [row(call=n, messages_delta="x" * size) for n, size in enumerate(sizes)]
    records.write(path, records.table(rows, records.CALLS), row_group_bytes=2500)
    metadata = pq.ParquetFile(path).metadata
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [2, 1, 1, 1]


def test_a_column_that_an_older_file_lacks_is_null(tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    old = records.table([row()], records.CALLS).drop_columns(["raw_ref"])
    records.write(path, old)
    assert records.read(path, records.CALLS)[0]["raw_ref"] is None


def test_a_column_that_only_a_newer_file_has_is_left_out(tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    newer = records.table([row()], records.CALLS).append_column("new", [["a"]])
    records.write(path, newer)
    assert set(records.read(path, records.CALLS)[0]) == set(records.CALLS.names)


def test_only_the_wanted_columns_come_back_and_a_misspelt_one_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    records.write(path, records.table([row(call=3)], records.CALLS))
    assert records.read(path, records.CALLS, ["call", "prompt_delta_ids"]) == [{"call": 3, "prompt_delta_ids": [1]}]
    with pytest.raises(ValueError, match="calls_pth"):
        records.read(path, records.CALLS, ["calls_pth"])


@pytest.mark.parametrize("wanted", [["b"], ["a", "d"], ["0"], ["zz"], []])
def test_only_the_rows_of_the_wanted_rollouts_come_back(tmp_path: Path, wanted: list[str]) -> None:
    path = str(tmp_path / "x.parquet")
    rows = [row(rollout=name, call=call) for name in "abcd" for call in range(7)]
    records.write(path, records.table(rows, records.CALLS), row_group_bytes=1000)
    read = records.read(path, records.CALLS, ["rollout", "call"], rollouts=wanted)
    assert read == [{"rollout": r["rollout"], "call": r["call"]} for r in rows if r["rollout"] in wanted]


def test_a_written_file_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.parquet"
    synced: list[tuple[str, bool]] = []

    def sync(file: int, real: Any = os.fsync) -> None:
        real(file)
        synced.append((os.readlink(f"/proc/self/fd/{file}"), path.exists()))

    monkeypatch.setattr(os, "fsync", sync)
    records.write(str(path), records.table([row()], records.CALLS))
    (file, named), folder = synced
    assert (Path(file).parent, named) == (tmp_path, False)
    assert folder == (str(tmp_path), True)


def test_json_text_refuses_what_other_readers_refuse() -> None:
    with pytest.raises(ValueError, match="JSON"):
        records.to_json(float("nan"))
