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
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
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
class _Owed:
    """A written line whose file (open) is not synced yet, nor, where it is `new`, its folder; `done` waits for both."""

    path: Path
    file: int
    new: bool
    done: "asyncio.Future[None]"


def die(error: Exception) -> None:
    """End the process at once: nothing may be served that is not recorded."""
    print(f"proxy: cannot record ({error}); stopping so that nothing goes unrecorded", file=sys.stderr, flush=True)
    os._exit(3)


class Ledger:
    """Appends lines for any number of rollouts. The event loop writes, in order; a few threads wait for the disk.

    To write is to copy into the kernel's cache, and costs less than waking a thread to do it: with a writing thread
    64 connections took 6.0 ms of CPU a call, without it 4.0. A file is open only while lines are added to it, so that
    thousands of live rollouts hold no descriptors.
    """

    def __init__(self, on_failure: Callable[[Exception], None] = die) -> None:
        self._late: dict[Path, bytes] = {}
        self._new: set[Path] = set()
        self._gathered: list[_Owed] = []
        self._owed: deque[_Owed] = deque()
        self._lock = threading.Lock()
        self._syncing = 0
        self._on_failure = on_failure
        self._work: SimpleQueue[asyncio.AbstractEventLoop | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def append(self, path: Path, row: dict[str, Any]) -> "asyncio.Future[None]":
        """Add one line to `path`. What is returned is done when it is on disk, and with it all lines before it; to
        cancel that changes nothing on disk."""
        loop = asyncio.get_running_loop()
        owed = _Owed(path, self._write(path, row), path in self._new, loop.create_future())
        if not self._gathered:
            loop.call_soon(self._hand_over, loop)
        self._gathered.append(owed)
        return owed.done

    def note(self, path: Path, row: dict[str, Any]) -> None:
        """Add one line that no reply depends on, without waiting. A power cut may take it, and with it the rollout's
        end."""
        os.close(self._write(path, row))

    def note_later(self, path: Path, row: dict[str, Any]) -> None:
        """Add one line together with the next one of that file."""
        self._late[path] = self._late.get(path, b"") + _encoded(row)

    def stop(self) -> None:
        """Sync what was handed over and end the threads."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        """What one round of the event loop wrote goes to the threads together: to wake them for each line makes them
        and the loop take the interpreter's lock from each other all the time."""
        with self._lock:
            self._owed.extend(self._gathered)
            self._gathered.clear()
            more = min(_SYNC_THREADS, len(self._owed)) - self._syncing
            self._syncing += max(more, 0)
        for _ in range(more):
            if len(self._threads) < _SYNC_THREADS:
                self._threads.append(threading.Thread(target=self._run, name="ledger-sync", daemon=True))
                self._threads[-1].start()
            self._work.put(loop)

    def _run(self) -> None:
        while (loop := self._work.get()) is not None:
            self._sync(loop)

    def _write(self, path: Path, row: dict[str, Any]) -> int:
        """The file, open, with the line in it."""
        data = self._late.pop(path, b"") + _encoded(row)
        try:
            file = self._open(path)
            if os.write(file, data) != len(data):
                raise OSError("short write: the disk may be full")
        except OSError as error:  # lines are lost from here on
            self._on_failure(error)
            raise
        return file

    def _open(self, path: Path) -> int:
        try:
            return os.open(path, os.O_WRONLY | os.O_APPEND)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._new.add(path)
            return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _sync(self, loop: asyncio.AbstractEventLoop) -> None:
        while owed := self._take():
            try:
                for each in owed:
                    os.fdatasync(each.file)
                    os.close(each.file)
                    if each.new:
                        sync_folder(each.path.parent)
            except OSError as error:
                self._on_failure(error)
                return
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(self._tell, owed)

    def _take(self) -> list[_Owed]:
        """This thread's share of what is owed; nothing if there is none, and the thread is done."""
        with self._lock:
            share = -(-len(self._owed) // _SYNC_THREADS)
            self._syncing -= not share
            return [self._owed.popleft() for _ in range(share)]

    def _tell(self, owed: list[_Owed]) -> None:
        for each in owed:
            self._new.discard(each.path)
            if not each.done.done():
                each.done.set_result(None)


def _encoded(row: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # half a surrogate pair: JSON has a spelling for it, UTF-8 has none
        return to_json(row).encode() + b"\n"


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


def carry_on(earlier: Path, path: Path) -> None:
    """Let the ledger at `path`, not there yet, begin with the lines of an ended one but its end; that one goes."""
    lines = earlier.read_bytes().removesuffix(b"\n").split(b"\n")[:-1]
    with path.open("xb") as file:
        file.writelines(line + b"\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    earlier.unlink()
    sync_folder(path.parent)


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
