"""The Arrow schema of what is recorded, and whole-file reading and writing of it.

Two tables, both versioned by `SCHEMA_VERSION` and written as Parquet to any fsspec path:

* `calls`: one row per model call, one file per rollout. Token ids are deltas to the parent call:
  `prompt = (parent prompt + parent sampled)[:prompt_prefix_len] + prompt_delta_ids`.
* `rollouts`: one row per rollout try.

Open-ended fields (sampling, messages, reward parts) are JSON text: their keys differ from row to row (cases O68, O69).
"""

import json
import uuid
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA_VERSION = 1

_ids = pa.list_(pa.int32())
_strings = pa.list_(pa.string())

CALLS = pa.schema(
    [
        ("schema_version", pa.int16()),
        ("run", pa.string()),
        ("epoch", pa.int32()),
        ("task", pa.string()),
        ("sample", pa.int32()),
        ("try", pa.int32()),
        ("rollout", pa.string()),
        ("call", pa.int32()),
        ("chain", pa.string()),
        ("parent_call", pa.int32()),
        ("agent", pa.string()),
        ("dialect", pa.string()),
        ("harness", pa.string()),
        ("model", pa.string()),
        ("weight_version", pa.int64()),
        ("started_at", pa.timestamp("us", tz="UTC")),
        ("ended_at", pa.timestamp("us", tz="UTC")),
        ("status", pa.string()),
        ("http_status", pa.int16()),
        ("finish", pa.string()),
        ("prompt_delta_ids", _ids),
        ("prompt_prefix_len", pa.int32()),
        ("sampled_ids", _ids),
        ("sampled_logprobs", pa.list_(pa.float32())),
        ("logprob_kind", pa.string()),
        ("sampling", pa.string()),
        ("messages_delta", pa.string()),
        ("tools_digest", pa.string()),
        ("usage_prompt", pa.int32()),
        ("usage_completion", pa.int32()),
        ("usage_cached", pa.int32()),
        ("findings", _strings),
        ("request_sha", pa.string()),
        ("raw_ref", pa.string()),
    ]
)
"""`status`: "ok" | "error" | "incomplete" | "abandoned". Only "ok" rows may be trained."""

ROLLOUTS = pa.schema(
    [
        ("schema_version", pa.int16()),
        ("run", pa.string()),
        ("epoch", pa.int32()),
        ("task", pa.string()),
        ("sample", pa.int32()),
        ("try", pa.int32()),
        ("rollout", pa.string()),
        ("group", pa.string()),
        ("split", pa.string()),
        ("kind", pa.string()),
        ("harness", pa.string()),
        ("harness_version", pa.string()),
        ("sandbox", pa.string()),
        ("exit_code", pa.int32()),
        ("exit", pa.string()),
        ("reason", pa.string()),
        ("error_class", pa.string()),
        ("reward", pa.float64()),
        ("reward_parts", pa.string()),
        ("verdict_reason", pa.string()),
        ("started_at", pa.timestamp("us", tz="UTC")),
        ("ended_at", pa.timestamp("us", tz="UTC")),
        ("timings", pa.string()),
        ("complete", pa.bool_()),
        ("calls", pa.int32()),
        ("chains", pa.int32()),
        ("prompt_tokens", pa.int64()),
        ("sampled_tokens", pa.int64()),
        ("weight_version", pa.int64()),
        ("calls_path", pa.string()),
        ("findings", _strings),
        ("finding_counts", pa.string()),
    ]
)
"""`reward` null means no verdict; `error_class` is the name of a failure class or null; `complete` is false when the
recording has a hole, and such a rollout is never trained. `group` is the prompt group: run, epoch and task. `findings`
are codes of `findings.FINDINGS`; `finding_counts` (JSON text) says in how many calls each was found."""


def table(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as a table in `schema`. Raises ValueError on a key the schema lacks; a missing key is null."""
    rows = list(rows)
    names = set(schema.names)
    for row in rows:
        unknown = set(row) - names
        if unknown:
            raise ValueError(f"not in the schema: {', '.join(sorted(unknown))}")
    columns = {name: pa.array([row.get(name) for row in rows], schema.field(name).type) for name in schema.names}
    return pa.table(columns, schema=schema)


def write(path: str, data: pa.Table, *, row_group_bytes: int = 64 << 20) -> None:
    """Write one Parquet file so that readers see all of it or nothing: temporary name, then rename.

    Row groups are bounded by bytes, not rows, so that a long text cannot make one unreadable (case O71).
    """
    fs, plain = fsspec.core.url_to_fs(path)
    fs.makedirs(fs._parent(plain), exist_ok=True)
    temporary = f"{fs._parent(plain)}/.{plain.rsplit('/', 1)[-1]}.{uuid.uuid4().hex}.tmp"
    try:
        with fs.open(temporary, "wb") as sink, pq.ParquetWriter(sink, data.schema, compression="zstd") as writer:
            for start, length in _row_groups(data, row_group_bytes):
                writer.write_table(data.slice(start, length), row_group_size=max(length, 1))
        fs.mv(temporary, plain)
    except BaseException:
        if fs.exists(temporary):
            fs.rm(temporary)
        raise


def _row_groups(data: pa.Table, limit: int) -> Iterable[tuple[int, int]]:
    start = size = 0
    for row in range(data.num_rows):
        row_bytes = data.slice(row, 1).nbytes
        if row > start and size + row_bytes > limit:
            yield start, row - start
            start, size = row, 0
        size += row_bytes
    yield start, data.num_rows - start


def read(path: str, schema: pa.Schema, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """One file's rows in `schema`; a column that an older file lacks is null.

    Raises `pyarrow.ArrowInvalid` if the file is torn and `FileNotFoundError` if there is none.
    """
    fs, plain = fsspec.core.url_to_fs(path)
    with fs.open(plain, "rb") as source:
        data = pq.ParquetFile(source).read(columns=None)
    wanted = columns or schema.names
    present = [name for name in wanted if name in data.column_names]
    rows = data.select(present).to_pylist()
    missing = dict.fromkeys(set(wanted) - set(present))
    return [{**missing, **row} for row in rows]


def is_whole(path: str) -> bool:
    """Whether `path` is a Parquet file that can be read to its end; a torn, empty or missing one is not."""
    try:
        fs, plain = fsspec.core.url_to_fs(path)
        with fs.open(plain, "rb") as source:
            pq.ParquetFile(source).read()
    except (pa.ArrowInvalid, pa.ArrowException, OSError):
        return False
    return True


def to_json(value: Any) -> str:
    """JSON text for an open-ended field; refuses NaN and infinities rather than writing what readers refuse."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
