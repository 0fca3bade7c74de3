"""The Arrow schema of what is recorded, and reading and writing of it.

Two tables, both versioned by `SCHEMA_VERSION` and written as Parquet to any fsspec path:

* `calls`: one row per model call, one file per rollout. Token ids are deltas to the parent call:
  `prompt = (parent prompt + parent sampled)[:prompt_prefix_len] + prompt_delta_ids`.
* `rollouts`: one row per rollout try.

Open-ended fields (sampling, messages, reward parts) are JSON text: their keys differ from row to row (cases O68, O69).
"""

import json
import os
import uuid
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

SCHEMA_VERSION = 1

ROW_GROUP_BYTES = 8 << 20
"""What a row group may hold, uncompressed: a reader has one in memory at a time (cases O71, O73)."""

_ROWS_AT_A_TIME = 16
_BUFFER_BYTES = 1 << 16

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
        ("weight_version_last", pa.int64()),
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
        ("images", _strings),
    ]
)
"""`status`: "ok" | "error" | "incomplete" | "abandoned". Only "ok" rows may be trained. `weight_version` and
`weight_version_last` are the oldest and newest weights that sampled a token of the call, null if the engine does not
say; staleness counts from the oldest (case O58). `images`: the hashes of the images in the whole prompt, in the order
of their placeholder tokens; null where the policy saw none."""

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
        ("continues", pa.int32()),
    ]
)
"""`reward` null means no verdict; `error_class` is the name of a failure class or null; `complete` is false when the
recording has a hole, and such a rollout is never trained. `group` is the prompt group: run, epoch and task. `findings`
are codes of `findings.FINDINGS`; `finding_counts` (JSON text) says in how many calls each was found. `continues` is
the try that this one went on with, null if it began afresh; calls, tokens and the rollout's time are then of both."""


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


def write(path: str, data: pa.Table, *, row_group_bytes: int = ROW_GROUP_BYTES) -> None:
    """Write one Parquet file so that readers see all of it or nothing: temporary name, then rename."""
    write_all(path, data.schema, [data], row_group_bytes=row_group_bytes)


def write_all(
    path: str, schema: pa.Schema, tables: Iterable[pa.Table], *, row_group_bytes: int = ROW_GROUP_BYTES
) -> None:
    """Write one Parquet file from tables that need not fit in memory together. On a local disk it is fsynced.

    Row groups are bounded by bytes, not rows, so that a long text cannot make one unreadable (case O71).
    """
    fs, plain = fsspec.core.url_to_fs(path)
    fs.makedirs(fs._parent(plain), exist_ok=True)
    temporary = f"{fs._parent(plain)}/.{plain.rsplit('/', 1)[-1]}.{uuid.uuid4().hex}.tmp"
    local = isinstance(fs, LocalFileSystem)
    try:
        with fs.open(temporary, "wb") as sink:
            with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
                for data in tables:
                    for start, length in _row_groups(data, row_group_bytes):
                        writer.write_table(data.slice(start, length), row_group_size=max(length, 1))
            if local:  # else a power cut after the rename leaves the name without the rows
                sink.flush()
                os.fsync(sink.fileno())
        fs.mv(temporary, plain)
        if local:
            sync_folder(Path(plain).parent)
    except BaseException:
        if fs.exists(temporary):
            fs.rm(temporary)
        raise


def sync_folder(folder: Path) -> None:
    """Put a folder's names on disk: a file that is fsynced can still lose its name in a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _row_groups(data: pa.Table, limit: int) -> Iterable[tuple[int, int]]:
    start = size = 0
    for row in range(data.num_rows):
        row_bytes = data.slice(row, 1).nbytes
        if row > start and size + row_bytes > limit:
            yield start, row - start
            start, size = row, 0
        size += row_bytes
    yield start, data.num_rows - start


def read(
    path: str, schema: pa.Schema, columns: Collection[str] | None = None, *, rollouts: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """One file's rows; see `stream`."""
    return list(stream(path, schema, columns, rollouts=rollouts))


def stream(
    path: str, schema: pa.Schema, columns: Collection[str] | None = None, *, rollouts: Collection[str] | None = None
) -> Iterator[dict[str, Any]]:
    """One file's rows in `schema`, with one row group of the wanted `columns` in memory at a time (case O73).

    A column that an older file lacks is null, one that only a newer file has is left out. With `rollouts`, only their
    rows; row groups that hold none of them are not read. Raises ValueError if the schema lacks one of `columns`,
    `pyarrow.ArrowInvalid` if the file is torn and `FileNotFoundError` if there is none.
    """
    wanted = list(columns or schema.names)
    if unknown := set(wanted) - set(schema.names):
        raise ValueError(f"not in the schema: {', '.join(sorted(unknown))}")
    fs, plain = fsspec.core.url_to_fs(path)
    with fs.open(plain, "rb") as source, pq.ParquetFile(source, buffer_size=_BUFFER_BYTES) as file:
        present = [name for name in wanted if name in file.schema_arrow.names]
        missing = dict.fromkeys(name for name in wanted if name not in present)
        for group in range(file.num_row_groups):
            mask = None if rollouts is None else _rows_of(file, group, rollouts)
            if mask is not None and not pc.any(mask).as_py():
                continue
            start = 0
            for batch in file.iter_batches(_ROWS_AT_A_TIME, [group], present, use_threads=False):
                for row in range(batch.num_rows):
                    if mask is None or mask[start + row].as_py():
                        yield {**missing, **batch.slice(row, 1).to_pylist()[0]}
                start += batch.num_rows


def _rows_of(file: pq.ParquetFile, group: int, rollouts: Collection[str]) -> pa.Array:
    """Which rows of a row group are of `rollouts`; read from the file only if its statistics leave it open."""
    facts = file.metadata.row_group(group)
    columns = (facts.column(place) for place in range(facts.num_columns))
    known = next(column.statistics for column in columns if column.path_in_schema == "rollout")
    if known is not None and known.has_min_max and not any(known.min <= name <= known.max for name in rollouts):
        return pa.array([False])
    names = file.read_row_group(group, ["rollout"], use_threads=False)["rollout"].combine_chunks()
    return pc.is_in(names, value_set=pa.array(rollouts, pa.string()))


TORN = (pa.ArrowException, OSError)
"""What reading a file raises that is torn, empty or missing."""


def is_whole(path: str) -> bool:
    """Whether `path` is a Parquet file that can be read to its end; a torn, empty or missing one is not."""
    try:
        fs, plain = fsspec.core.url_to_fs(path)
        with fs.open(plain, "rb") as source, pq.ParquetFile(source) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group, use_threads=False)
    except TORN:
        return False
    return True


def to_json(value: Any) -> str:
    """JSON text for an open-ended field; refuses NaN and infinities rather than writing what readers refuse.

    Half of a surrogate pair, which JSON may spell and UTF-8 may not, stays spelled `\\udxxx`.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
