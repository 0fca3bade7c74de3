"""O70: two workers and one folder: two rollouts, and still two after one of them is written again."""

import subprocess
import sys
from pathlib import Path

import pyarrow.dataset

from proxy_addons.packing import pack

WORKER = """
import sys
from proxy_addons import records
for _ in range(int(sys.argv[3])):
    rows = [{"rollout": sys.argv[2], "call": n, "findings": []} for n in range(3)]
    records.write(f"{sys.argv[1]}/{sys.argv[2]}.parquet", records.table(rows, records.CALLS))
"""


def test_o70_a_retry_writes_the_same_file(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", WORKER, str(tmp_path)]
    workers = [subprocess.Popen([*argv, rollout, times]) for rollout, times in (("a-t0", "1"), ("b-t0", "2"))]
    workers.append(subprocess.Popen([*argv, "b-t0", "5"]))  # the retry, while the first one still runs
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert _counts(tmp_path) == {"a-t0": 3, "b-t0": 3}
    assert len(list(tmp_path.iterdir())) == 2
    pack(str(tmp_path))
    pack(str(tmp_path))
    assert _counts(tmp_path) == {"a-t0": 3, "b-t0": 3}


def _counts(folder: Path) -> dict[str, int]:
    table = pyarrow.dataset.dataset(folder, format="parquet").to_table(["rollout"])
    return {pair["values"]: pair["counts"] for pair in table["rollout"].value_counts().to_pylist()}
