"""The call ledger: what happened is on disk before the harness learns of it.

One append-only file of JSON lines per rollout while it lives: an `intent` line before a call is dispatched, a
`terminal` line after, a `delivered` line when the harness has the reply. `append` returns once the line is fsynced;
lines that arrive together share one fsync. When the rollout ends, `compile_calls` turns the file into rows.

If a line cannot be written the process ends: a proxy that cannot record must not serve.
"""

import asyncio
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from proxy_addons.records import SCHEMA_VERSION
from proxy_addons.records import to_json
from proxy_addons.settle import settle
from proxy_addons.settle import side_calls


@dataclass
class _Line:
    path: Path
    text: bytes
    done: "asyncio.Future[None] | None"


def die(error: OSError) -> None:
    """End the process at once: nothing may be served that is not recorded."""
    print(f"proxy: cannot record ({error}); stopping so that nothing goes unrecorded", file=sys.stderr, flush=True)
    os._exit(3)


class Ledger:
    """Appends lines for any number of rollouts from one writer thread."""

    def __init__(self, on_failure: Callable[[OSError], None] = die) -> None:
        self._queue: queue.SimpleQueue[_Line | Path | None] = queue.SimpleQueue()
        self._files: dict[Path, int] = {}
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._write, name="ledger", daemon=True)
        self._thread.start()

    async def append(self, path: Path, row: dict[str, Any]) -> None:
        """Write one line to `path`; returns when it is on disk."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._queue.put(_Line(path, orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE), done))
        await asyncio.shield(done)

    def note(self, path: Path, row: dict[str, Any]) -> None:
        """Write one line to `path` in its turn, without waiting; it is on disk before any line appended after it."""
        self._queue.put(_Line(path, orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE), None))

    def release(self, path: Path) -> None:
        """Close the file of a rollout that has ended."""
        self._queue.put(path)

    def stop(self) -> None:
        """Write what is queued and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _write(self) -> None:
        while True:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get())
            lines = [item for item in batch if isinstance(item, _Line)]
            try:
                self._commit(lines)
            except OSError as error:
                self._on_failure(error)
                return
            for line in lines:
                if line.done is not None:
                    line.done.get_loop().call_soon_threadsafe(_resolve, line.done)
            for item in batch:
                if isinstance(item, Path) and item in self._files:
                    os.close(self._files.pop(item))
            if None in batch:
                return

    def _commit(self, lines: list[_Line]) -> None:
        for line in lines:
            if line.path not in self._files:
                line.path.parent.mkdir(parents=True, exist_ok=True)
                self._files[line.path] = os.open(line.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            if os.write(self._files[line.path], line.text) != len(line.text):
                raise OSError("short write: the disk may be full")
        for path in {line.path for line in lines if line.done is not None}:
            os.fsync(self._files[path])


def _resolve(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)


def read_ledger(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The lines of a ledger, and whether it is whole (a torn last line was never acknowledged)."""
    if not path.exists():
        return [], True
    lines: list[dict[str, Any]] = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            return lines, False
    return lines, True


def compile_calls(path: Path, identity: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """The `calls` rows of a rollout from its ledger, and whether the recording is complete.

    A call without its terminal line has status "incomplete" and makes the rollout incomplete. `identity` holds the
    columns that are equal in every row.
    """
    lines, whole = read_ledger(path)
    calls: dict[int, dict[str, Any]] = {}
    for line in lines:
        kind = line.pop("kind")
        if kind == "intent":
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
    return rows, whole and all(row["status"] != "incomplete" for row in rows)
