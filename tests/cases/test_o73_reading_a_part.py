"""O73: reading a hundredth of the rows takes the memory of a row group or two, not of the file."""

import subprocess
import sys
from collections.abc import Iterator

import numpy
import pyarrow as pa
import pytest

from proxy_addons import records

pytestmark = pytest.mark.timeout(120)

GROUPS, GROUP_BYTES, ROWS = 100, 2 << 20, 8

READER = """
import sys
import pyarrow as pa
from proxy_addons import records
rows = list(records.stream(sys.argv[1], records.CALLS, rollouts=sys.argv[2].split(",")))
print(len(rows), len(rows[0]["prompt_delta_ids"]), pa.default_memory_pool().max_memory())
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = numpy.random.default_rng(0)
    each = GROUP_BYTES // 4 // ROWS

    def tables() -> Iterator[pa.Table]:
        for group in range(GROUPS):
            values = pa.array(rng.integers(0, 2**31, ROWS * each, dtype=numpy.int32))
            offsets = pa.array(numpy.arange(ROWS + 1, dtype=numpy.int32) * each)
            given = {
                "rollout": pa.array([f"r-{group:03}-{row}" for row in range(ROWS)]),
                "prompt_delta_ids": pa.ListArray.from_arrays(offsets, values),
            }
            columns = [given.get(field.name, pa.nulls(ROWS, field.type)) for field in records.CALLS]
            yield pa.table(columns, schema=records.CALLS)

    file = tmp_path_factory.mktemp("large") / "x.parquet"
    records.write_all(str(file), records.CALLS, tables())
    assert file.stat().st_size > 0.9 * GROUPS * GROUP_BYTES
    return str(file)


@pytest.mark.parametrize("wanted", [[f"r-{n:03}-3" for n in range(7, 15)], [f"r-{n:03}-0" for n in range(0, 100, 13)]])
def test_o73_one_percent_of_the_rows(path: str, wanted: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READER, path, ",".join(wanted)], capture_output=True, text=True, check=True
    )
    rows, tokens, peak = (int(word) for word in done.stdout.split())
    assert (rows, tokens) == (8, GROUP_BYTES // 4 // ROWS)
    # One group as it is in the file, decoded, and the room that a list grows into: the file has a hundred.
    assert peak < 6 * GROUP_BYTES
