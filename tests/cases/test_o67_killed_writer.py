"""O67: a writer that dies between row groups leaves nothing that a reader of the folder sees or stumbles over."""

import subprocess
import sys
from pathlib import Path

import pyarrow.dataset

from proxy_addons import records

WRITER = """
import sys, time
from proxy_addons import records
def tables():
    for group in range(3):
        rows = [{"rollout": "late", "call": 10 * group + n, "findings": []} for n in range(10)]
        yield records.table(rows, records.CALLS)
    print("three are written", flush=True)
    time.sleep(60)
records.write_all(sys.argv[1], records.CALLS, tables())
"""


def test_o67_killed_after_three_row_groups(tmp_path: Path) -> None:
    finished, late = tmp_path / "early.parquet", tmp_path / "late.parquet"
    records.write(str(finished), records.table([{"rollout": "early", "findings": []}], records.CALLS))
    with subprocess.Popen([sys.executable, "-c", WRITER, str(late)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "three are written\n"
        half = [path for path in tmp_path.iterdir() if path != finished]
        assert [path.name[0] for path in half] == ["."]
        assert half[0].stat().st_size > 0
        writer.kill()
    assert not late.exists()
    assert not records.is_whole(str(half[0]))
    assert pyarrow.dataset.dataset(tmp_path, format="parquet").to_table(["rollout"]).to_pylist() == [
        {"rollout": "early"}
    ]
