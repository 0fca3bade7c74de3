"""O71: row groups are bounded by bytes; a row above the bound is alone in its group and can be read."""

from pathlib import Path

import pyarrow.parquet as pq

from proxy_addons import records

MB = 1 << 20


def test_o71_rows_of_a_megabyte_and_one_above_the_bound(tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    sizes = [MB] * 20 + [20 * MB] + [MB] * 3
    rows = [{"rollout": "r", "call": n, "messages_delta": "x" * size, "findings": []} for n, size in enumerate(sizes)]
    records.write(path, records.table(rows, records.CALLS), row_group_bytes=8 * MB)
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
        assert [group.num_rows for group in groups] == [7, 7, 6, 1, 3]
        assert all(file.read_row_group(n).nbytes <= 8 * MB for n in (0, 1, 2, 4))
    read = records.read(path, records.CALLS, ["call", "messages_delta"])
    assert [len(row["messages_delta"]) for row in read] == sizes
    assert [row["call"] for row in records.stream(path, records.CALLS, ["call"])] == list(range(24))
