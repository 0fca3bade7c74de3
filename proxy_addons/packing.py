"""Many small calls files into few: a rollout writes its own file, and an epoch has thousands of rollouts.

    pack("runs/r/epoch-001/calls")       # once none of its rollouts will be run again
    read_calls(row["calls_path"])        # the rollout's calls, from its own file or from a packed one beside it

A packed file is written whole under its name before the files in it are removed. After a crash between the two both
are there; a rollout is then read from its own file, and the next `pack` removes what it finds packed already. Torn
files, files without rows and files with columns that this version does not know stay as they are.
"""

import hashlib
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from proxy_addons import records
from proxy_addons.records import CALLS

FILE_BYTES = 512 << 20
"""What goes into one packed file, in bytes of the files it is made of."""

_PREFIX = "packed_"  # no rollout id has an underscore


def pack(folder: str, *, file_bytes: int = FILE_BYTES, row_group_bytes: int = records.ROW_GROUP_BYTES) -> int:
    """Merge the calls files in `folder`; returns how many rollouts now lie in packed files. May be run again."""
    fs, plain = fsspec.core.url_to_fs(folder)
    own = {PurePosixPath(path).stem: path for path in _files(fs, plain) if not _is_packed(path)}
    done = _packed(fs, plain)
    ready = [path for rollout, path in sorted(own.items()) if rollout not in done and _can_be_packed(fs, path, rollout)]
    for paths in _by_size(ready, [fs.size(path) for path in ready], file_bytes):
        digest = hashlib.sha256("\n".join(PurePosixPath(path).stem for path in paths).encode()).hexdigest()[:16]
        tables = _joined((_read(fs, path) for path in paths), row_group_bytes)
        target = fs.unstrip_protocol(f"{plain}/{_PREFIX}{digest}.parquet")
        records.write_all(target, CALLS, tables, row_group_bytes=row_group_bytes)
    done = _packed(fs, plain)
    for rollout in sorted(done & own.keys()):
        fs.rm(own[rollout])
    return len(done)


def read_calls(path: str, columns: Collection[str] | None = None) -> list[dict[str, Any]]:
    """The calls of the rollout whose file is or was `path`. Raises FileNotFoundError if they are nowhere."""
    fs, plain = fsspec.core.url_to_fs(path)
    if fs.exists(plain):
        return records.read(path, CALLS, columns)
    for packed in _packed_beside(fs, plain):
        rows = records.read(fs.unstrip_protocol(packed), CALLS, columns, rollouts=[PurePosixPath(plain).stem])
        if rows:
            return rows
    raise FileNotFoundError(f"no calls of {PurePosixPath(plain).stem} at {path}, nor packed beside it")


def has_calls(path: str) -> bool:
    """Whether the calls of the rollout whose file is or was `path` are there and can be read."""
    if records.is_whole(path):
        return True
    fs, plain = fsspec.core.url_to_fs(path)
    return any(
        records.read(fs.unstrip_protocol(packed), CALLS, ["rollout"], rollouts=[PurePosixPath(plain).stem])
        for packed in _packed_beside(fs, plain)
    )


def _files(fs: fsspec.AbstractFileSystem, folder: str) -> list[str]:
    return sorted(path for path in fs.ls(folder, detail=False) if _is_calls(path)) if fs.exists(folder) else []


def _is_calls(path: str) -> bool:
    name = PurePosixPath(path).name
    return name.endswith(".parquet") and not name.startswith(".")


def _is_packed(path: str) -> bool:
    return PurePosixPath(path).name.startswith(_PREFIX)


def _packed_beside(fs: fsspec.AbstractFileSystem, path: str) -> list[str]:
    return [each for each in _files(fs, fs._parent(path)) if _is_packed(each)]


def _packed(fs: fsspec.AbstractFileSystem, folder: str) -> set[str]:
    """The rollouts in the packed files of `folder`."""
    return {
        row["rollout"]
        for path in _files(fs, folder)
        if _is_packed(path)
        for row in records.stream(fs.unstrip_protocol(path), CALLS, ["rollout"])
    }


def _can_be_packed(fs: fsspec.AbstractFileSystem, path: str, rollout: str) -> bool:
    try:
        with fs.open(path, "rb") as source, pq.ParquetFile(source) as file:
            if not set(file.schema_arrow.names) <= set(CALLS.names):
                return False
            return set(file.read(["rollout"])["rollout"].to_pylist()) == {rollout}
    except (pa.ArrowException, OSError, KeyError):
        return False


def _by_size(paths: list[str], sizes: list[int], limit: int) -> Iterator[list[str]]:
    part: list[str] = []
    total = 0
    for path, size in zip(paths, sizes, strict=True):
        if part and total + size > limit:
            yield part
            part, total = [], 0
        part.append(path)
        total += size
    if part:
        yield part


def _read(fs: fsspec.AbstractFileSystem, path: str) -> pa.Table:
    """One file in the present schema: a column that an older file lacks is null."""
    with fs.open(path, "rb") as source, pq.ParquetFile(source) as file:
        data = file.read()
    columns = [
        data[field.name].cast(field.type) if field.name in data.column_names else pa.nulls(data.num_rows, field.type)
        for field in CALLS
    ]
    return pa.table(columns, schema=CALLS)


def _joined(tables: Iterable[pa.Table], limit: int) -> Iterator[pa.Table]:
    """Small tables put together until they are worth a row group."""
    waiting: list[pa.Table] = []
    total = 0
    for table in tables:
        waiting.append(table)
        total += table.nbytes
        if total >= limit:
            yield pa.concat_tables(waiting)
            waiting, total = [], 0
    if waiting:
        yield pa.concat_tables(waiting)
