"""`manifest.parquet` beside the task folders: one row a task, with the digest of the version that was meant."""

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.taskset import Task

NAME = "manifest.parquet"
SCHEMA = pa.schema(
    [
        ("task", pa.string()),
        ("kind", pa.string()),
        ("split", pa.string()),
        ("instruction", pa.string()),
        ("digest", pa.string()),  # sha256 over the folder's files, hexadecimal
        ("agent_timeout_s", pa.float64()),
        ("verifier_timeout_s", pa.float64()),
        ("image", pa.string()),
    ]
)


def write(folder: Path, tasks: Sequence[Task]) -> Path:
    """Write the manifest of `tasks` into `folder`, whole or not at all."""
    rows = [
        {"task": task.id, **{name: getattr(task, name) for name in SCHEMA.names if name != "task"}} for task in tasks
    ]
    file = folder / NAME
    temporary = file.with_suffix(f".{os.getpid()}.part")
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), temporary)
    temporary.replace(file)
    return file


def differences(folder: Path, tasks: Sequence[Task]) -> list[str]:
    """How `tasks` are not the ones of the folder's manifest, one line each; none where there is no manifest."""
    file = folder / NAME
    if not file.is_file():
        return []
    try:
        table = pq.read_table(file, columns=["task", "digest"])
    except (pa.ArrowException, OSError, KeyError):
        return [f"{NAME} cannot be read; write it anew: python -m tasks.taskset manifest {folder}"]
    meant = dict(zip(table["task"].to_pylist(), table["digest"].to_pylist(), strict=True))
    found = {task.id: task.digest for task in tasks}
    return [
        *(f"task {name}: is in {NAME} and not in the folder" for name in sorted(meant.keys() - found.keys())),
        *(f"task {name}: is not in {NAME}" for name in sorted(found.keys() - meant.keys())),
        *(
            f"task {name}: is not the version that {NAME} names (digest {found[name][:12]}, not {meant[name][:12]})"
            for name in sorted(found.keys() & meant.keys())
            if found[name] != meant[name]
        ),
    ]
