"""O68: the schema does not come from the first rows, and a key that it lacks is an error."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from proxy_addons import records


def test_o68_what_the_first_row_lacks_is_kept_in_the_second(tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    rows: list[dict[str, Any]] = [
        {"rollout": "r", "findings": []},
        {"rollout": "r", "findings": ["truncated"], "sampled_ids": [1]},
    ]
    for part in (rows, rows[:1]):
        records.write(path, records.table(part, records.CALLS))
        assert pq.read_schema(path).equals(records.CALLS)
        read = records.read(path, records.CALLS, ["rollout", "findings", "sampled_ids"])
        assert read == [{"sampled_ids": None, **row} for row in part]


@pytest.mark.parametrize("place", [0, 1])
def test_o68_an_unknown_key_is_an_error_in_any_row(place: int) -> None:
    rows: list[dict[str, object]] = [{"rollout": "r", "findings": []} for _ in range(2)]
    rows[place]["tool_calls"] = []
    with pytest.raises(ValueError, match="not in the schema: tool_calls"):
        records.table(rows, records.CALLS)
