import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from proxy_addons.errors import ConfigError
from proxy_addons.errors import VerifierError
from tasks.adapters import mcp_atlas

ROWS: list[dict[str, Any]] = [
    {
        "TASK": "65f0a1b2c3d4e5f6a7b8c9d0",
        "PROMPT": "Which of our shops sold most kettles?",
        "ENABLED_TOOLS": '["files_read", {"name": "calendar_list"}]',
        "GTFA_CLAIMS": "['The shop is in Ghent', 'It sold 12 kettles']",
    },
    {"TASK": "b", "PROMPT": "And where?", "ENABLED_TOOLS": "", "GTFA_CLAIMS": ""},
]


def write(folder: Path, form: str) -> Path:
    file = folder / f"data.{form}"
    match form:
        case "parquet":
            pq.write_table(pa.Table.from_pylist(ROWS), file)
        case "jsonl":
            file.write_text("\n".join(map(json.dumps, ROWS)))
        case "csv":
            with file.open("w", newline="") as opened:
                writer = csv.DictWriter(opened, ROWS[0].keys())
                writer.writeheader()
                writer.writerows(ROWS)
    return file


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_reads_rows(tmp_path: Path, form: str) -> None:
    write(tmp_path, form)
    first, second = mcp_atlas.read(tmp_path)
    assert isinstance(first.record, mcp_atlas.Row)
    assert first.record.claims == ["The shop is in Ghent", "It sold 12 kettles"]
    assert [str(need) for need in first.missing][:2] == ["tools files_read", "tools calendar_list"]
    assert "claims" in [str(need) for need in second.missing]


def test_which_file_is_the_set_must_be_plain(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds 0 data files"):
        mcp_atlas.read(tmp_path)
    write(tmp_path, "csv")
    write(tmp_path, "jsonl")
    with pytest.raises(ConfigError, match="holds 2 data files"):
        mcp_atlas.read(tmp_path)
    assert len(mcp_atlas.read(tmp_path / "data.csv")) == 2


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ('["one claim", "a b"]', ["one claim"]),
        ("- one claim\n2. another one\n", ["one claim", "another one"]),
        (["1) one claim"], ["one claim"]),
        (None, []),
    ],
)
def test_claims_in_every_spelling(text: Any, claims: list[str]) -> None:
    assert mcp_atlas.claims(text) == claims


def test_coverage_is_the_mean_over_claims() -> None:
    coverage = mcp_atlas.score(["fulfilled", "fulfilled", "partially_fulfilled", "not_fulfilled"])
    assert coverage == 0.625
    assert not mcp_atlas.passed(coverage)
    assert mcp_atlas.passed(mcp_atlas.score(["fulfilled", "partially_fulfilled"]))


@pytest.mark.parametrize("outcomes", [[], ["fulfilled", "unclear"]])
def test_no_claim_and_no_outcome_are_no_verdict(outcomes: Any) -> None:
    with pytest.raises(VerifierError):
        mcp_atlas.score(outcomes)
