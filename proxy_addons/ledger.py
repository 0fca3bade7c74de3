"""The call ledger: what happened is on disk before the harness learns of it.

One append-only file of JSON lines per rollout while it lives: an `intent` line before a call is dispatched, a
`terminal` line after, a `delivered` line when the harness has the reply, and an `end` line, with the number of calls,
when the orchestrator has ended the rollout. `append` (for `terminal` and `end`) returns once a line is fsynced, and
with it all lines before it in that file; `note` does not wait. Then `compile_calls` turns the file into rows. A ledger
without its `end` line is a dead proxy's: whatever it holds, the rollout is incomplete.

If a line cannot be written the process ends: a proxy that cannot record must not serve.
"""

import asyncio
import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from proxy_addons.records import SCHEMA_VERSION
from proxy_addons.records import sync_folder
from proxy_addons.records import to_json
from proxy_addons.settle import settle
from proxy_addons.settle import side_calls

# The kernel commits together what waits at the same time: to fsync 64 files one after the other took 110 to 140 ms on
# ext4, from several threads 7 ms. More threads than these were no faster.
_SYNC_THREADS = 4


@dataclass(frozen=True)
class _Line:
    path: Path
    data: bytes
    done: "asyncio.Future[None] | None"  # who waits until the line is on disk


def die(error: Exception) -> None:
    """End the process at once: nothing may be served that is not recorded."""
    print(f"proxy: cannot record ({error}); stopping so that nothing goes unrecorded", file=sys.stderr, flush=True)
    os._exit(3)


class Ledger:
    """Appends lines for any number of rollouts. One thread writes, in order; a few wait for the disk.

    A file is open only while lines are added to it, so that thousands of live rollouts hold no descriptors.
    """

    def __init__(self, on_failure: Callable[[Exception], None] = die) -> None:
        self._queue: queue.SimpleQueue[_Line | None] = queue.SimpleQueue()
        self._late: dict[Path, bytes] = {}
        self._on_failure = on_failure
        self._syncing = ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="ledger-sync")
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()

    async def append(self, path: Path, row: dict[str, Any]) -> None:
        """Add one line to `path`; returns when it is on disk, and with it all lines before it."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(_Line(path, self._late.pop(path, b"") + _encoded(row), done))
        await asyncio.shield(done)

    def note(self, path: Path, row: dict[str, Any]) -> None:
        """Add one line that no reply depends on, without waiting. A power cut may take it, and with it the rollout's
        end."""
        self._queue.put(_Line(path, self._late.pop(path, b"") + _encoded(row), None))

    def note_later(self, path: Path, row: dict[str, Any]) -> None:
        """Add one line together with the next one of that file: not worth waking the writer for."""
        self._late[path] = self._late.get(path, b"") + _encoded(row)

    def stop(self) -> None:
        """Write what is queued and end the threads."""
        self._queue.put(None)
        self._thread.join()
        self._syncing.shutdown()

    def _work(self) -> None:
        running = True
        while running:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get())
            running = None not in batch
            by_path: dict[Path, list[_Line]] = {}
            for line in batch:
                if line is not None:
                    by_path.setdefault(line.path, []).append(line)
            try:
                for path, lines in by_path.items():
                    self._write(path, lines)
            except Exception as error:  # whatever it is, lines are lost from here on
                self._on_failure(error)
                return

    def _write(self, path: Path, lines: list[_Line]) -> None:
        file = _open(path)
        data = b"".join(line.data for line in lines)
        if os.write(file, data) != len(data):
            raise OSError("short write: the disk may be full")
        if any(line.done for line in lines):
            self._syncing.submit(self._sync, file, lines)
        else:
            os.close(file)

    def _sync(self, file: int, lines: list[_Line]) -> None:
        try:
            os.fdatasync(file)
            os.close(file)
        except OSError as error:
            self._on_failure(error)
            return
        _tell(lines)


def _encoded(row: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # half a surrogate pair: JSON has a spelling for it, UTF-8 has none
        return to_json(row).encode() + b"\n"


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        sync_folder(path.parent)
        return file


def _tell(lines: list[_Line]) -> None:
    for done in (line.done for line in lines if line.done is not None):
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            done.get_loop().call_soon_threadsafe(_resolve, done)


def _resolve(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)


def read_ledger(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The lines of a ledger, and whether it is whole (a torn last line was never acknowledged)."""
    if not path.exists():
        return [], True
    lines: list[dict[str, Any]] = []
    *ended, rest = path.read_bytes().split(b"\n")  # not by `splitlines`, which also splits at U+2028 inside a text
    for text in ended:
        try:
            lines.append(json.loads(text))
        except ValueError:
            return lines, False
    return lines, not rest


def compile_calls(path: Path, identity: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """The `calls` rows of a rollout from its ledger, and whether the recording is complete.

    It is complete if it was ended, every call up to the number that the end names is there, and each has its terminal
    line; a call without one has status "incomplete". `identity` holds the columns that are equal in every row.
    """
    lines, whole = read_ledger(path)
    calls: dict[int, dict[str, Any]] = {}
    ended = None
    for line in lines:
        kind = line.pop("kind")
        if kind == "end":
            ended = line["calls"]
        elif kind == "intent":
            calls[line["call"]] = {"status": "incomplete", "findings": [], **line}
        elif line["call"] in calls:
            row = calls[line["call"]]
            row["findings"] = [*row["findings"], *line.pop("findings", [])]
            row.update(line)
    ordered = [calls[number] for number in sorted(calls)]
    places = settle(ordered)
    aside = side_calls(ordered)
    rows = []
    for row in ordered:
        row["chain"], row["status"] = places[row["call"]]
        for private in ("whole_prefix", "request_key", "offers_tools"):
            row.pop(private, None)
        if row["call"] in aside:
            row["findings"] = [*row["findings"], "side_call:no_tools"]
        reply = row.pop("reply", None)
        row["messages_delta"] = to_json([*row["messages_delta"], *([reply] if reply else [])])
        for stamp in ("started_at", "ended_at"):
            row[stamp] = datetime.fromisoformat(row[stamp]) if stamp in row else None
        rows.append({"schema_version": SCHEMA_VERSION, **identity, **row})
    answered = all(row["status"] != "incomplete" for row in rows)
    return rows, whole and answered and ended is not None and sorted(calls) == list(range(ended))
