import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from proxy_addons import ledger as ledger_module
from proxy_addons import records
from proxy_addons.ledger import Ledger
from proxy_addons.ledger import compile_calls
from proxy_addons.ledger import read_ledger
from proxy_addons.records import to_json

INTENT = {
    "kind": "intent",
    "call": 0,
    "started_at": "2026-12-01T00:00:00+00:00",
    "parent_call": None,
    "whole_prefix": False,
    "request_key": "k",
    "messages_delta": [{"role": "user", "content": "x"}],
    "prompt_delta_ids": [1, 2],
    "prompt_prefix_len": 0,
}
TERMINAL = {
    "kind": "terminal",
    "call": 0,
    "ended_at": "2026-12-01T00:00:01+00:00",
    "status": "ok",
    "sampled_ids": [3],
    "reply": {"role": "assistant", "content": "y"},
}


END = {"kind": "end", "calls": 1}


async def test_lines_of_many_rollouts_are_on_disk_when_append_returns(tmp_path: Path) -> None:
    ledger = Ledger()
    paths = [tmp_path / f"{n % 5}.ledger" for n in range(100)]
    await asyncio.gather(*(ledger.append(path, {"n": n}) for n, path in enumerate(paths)))
    read = [line["n"] for path in sorted(set(paths)) for line in read_ledger(path)[0]]
    assert sorted(read) == list(range(100))
    ledger.stop()


def write(path: Path, *lines: dict[str, Any], tail: str = "") -> Path:
    path.write_text("".join(to_json(line) + "\n" for line in lines) + tail)
    return path


def test_a_call_with_both_ends_is_a_complete_row(tmp_path: Path) -> None:
    rows, complete = compile_calls(write(tmp_path / "l", INTENT, TERMINAL, END), {"rollout": "r"})
    assert complete
    assert rows[0]["status"] == "ok"
    assert rows[0]["chain"] == "c0"
    assert '"content":"y"' in rows[0]["messages_delta"]


def test_a_call_without_its_end_makes_the_rollout_incomplete(tmp_path: Path) -> None:
    rows, complete = compile_calls(write(tmp_path / "l", INTENT, END), {"rollout": "r"})
    assert not complete
    assert rows[0]["status"] == "incomplete"


def test_a_torn_last_line_makes_the_rollout_incomplete(tmp_path: Path) -> None:
    rows, complete = compile_calls(write(tmp_path / "l", INTENT, TERMINAL, tail='{"kind": "int'), {"rollout": "r"})
    assert not complete
    assert len(rows) == 1


def test_o62_a_ledger_without_an_end_is_a_dead_proxys_and_never_looks_whole(tmp_path: Path) -> None:
    rows, complete = compile_calls(write(tmp_path / "l", INTENT, TERMINAL), {"rollout": "r"})
    assert [row["status"] for row in rows] == ["ok"]
    assert not complete


@pytest.mark.parametrize("kept", [[0], [1], []])
def test_a_call_that_is_missing_altogether_makes_the_rollout_incomplete(tmp_path: Path, kept: list[int]) -> None:
    lines = [line | {"call": n} for n in kept for line in (INTENT, TERMINAL)]
    rows, complete = compile_calls(write(tmp_path / "l", *lines, END | {"calls": 2}), {"rollout": "r"})
    assert [row["call"] for row in rows] == kept
    assert not complete


def test_a_rollout_that_was_ended_without_a_call_is_complete(tmp_path: Path) -> None:
    assert compile_calls(write(tmp_path / "l", END | {"calls": 0}), {"rollout": "r"}) == ([], True)


@pytest.mark.parametrize("text", ["a\u2028b\u2029c\x85d\x0be\x1cf", "half a pair \ud800 of surrogates", "\x00"])
async def test_any_text_comes_back_as_it_was(tmp_path: Path, text: str) -> None:
    path = tmp_path / "l"
    ledger = Ledger()
    said = {"role": "assistant", "content": text}
    for line in (INTENT | {"messages_delta": [said]}, TERMINAL | {"reply": said}, END):
        await ledger.append(path, line)
    ledger.stop()
    rows, complete = compile_calls(path, {"rollout": "r"})
    assert complete
    (stored,) = records.table(rows, records.CALLS).to_pylist()
    assert json.loads(stored["messages_delta"]) == [said, said]


async def test_a_terminal_line_is_synced_before_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[str, int] = {}

    def sync(file: int, real: Any = os.fdatasync) -> None:
        real(file)
        synced[os.readlink(f"/proc/self/fd/{file}")] = os.fstat(file).st_size

    monkeypatch.setattr(os, "fdatasync", sync)
    ledger = Ledger()

    async def call(path: Path) -> None:
        await ledger.append(path, INTENT)
        await ledger.append(path, TERMINAL)
        assert synced[str(path)] == path.stat().st_size
        await ledger.append(path, END)
        assert synced[str(path)] == path.stat().st_size

    await asyncio.gather(*(call(tmp_path / str(n)) for n in range(50)))
    ledger.stop()


async def test_the_folder_of_a_new_file_is_synced_before_its_first_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(ledger_module, "sync_folder", synced.append)
    ledger = Ledger()
    ledger.note(tmp_path / "new" / "l", INTENT)
    assert not synced
    await ledger.append(tmp_path / "new" / "l", TERMINAL)
    await ledger.append(tmp_path / "new" / "l", END)
    ledger.stop()
    assert synced == [tmp_path / "new"]


async def test_a_failure_to_sync_is_a_failure_to_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError("the disk is gone")

    failures: list[Exception] = []
    monkeypatch.setattr(os, "fdatasync", fail)
    ledger = Ledger(on_failure=failures.append)
    waiting = asyncio.ensure_future(ledger.append(tmp_path / "l", TERMINAL))
    await asyncio.sleep(0)
    await asyncio.to_thread(ledger.stop)
    assert [str(failure) for failure in failures] == ["the disk is gone"]
    assert not waiting.done()
    waiting.cancel()


_WRITER = """
    import asyncio, sys
    from pathlib import Path
    from proxy_addons.ledger import Ledger
    async def main():
        ledger, path = Ledger(), Path(sys.argv[1])
        for n in range(100000):
            await ledger.append(path, {"kind": "x", "call": n})
            print(n, flush=True)
    asyncio.run(main())
"""


def test_o62_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    for attempt in range(5):
        path = tmp_path / f"{attempt}.ledger"
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_WRITER), str(path)], stdout=subprocess.PIPE, cwd=Path.cwd()
        )
        assert writer.stdout is not None
        acknowledged = [int(writer.stdout.readline()) for _ in range(20 + attempt)][-1]
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        lines, _ = read_ledger(path)
        assert [line["call"] for line in lines][: acknowledged + 1] == list(range(acknowledged + 1))


def test_a_full_disk_ends_the_process_and_says_why(tmp_path: Path) -> None:
    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_WRITER), str(tmp_path / "full.ledger")],
        capture_output=True,
        cwd=Path.cwd(),
        preexec_fn=small_files,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=20,
    )
    assert done.returncode == 3
    assert b"cannot record" in done.stderr
    lines, _ = read_ledger(tmp_path / "full.ledger")
    # What the writer was told is on disk is there.
    assert len(lines) >= len(done.stdout.split())


async def test_open_files_do_not_grow_with_live_rollouts(tmp_path: Path) -> None:
    ledger = Ledger()
    await ledger.append(tmp_path / "first", TERMINAL)
    before = len(os.listdir("/proc/self/fd"))
    for start in range(0, 2000, 100):
        await asyncio.gather(*(ledger.append(tmp_path / str(n), TERMINAL) for n in range(start, start + 100)))
    assert len(os.listdir("/proc/self/fd")) <= before
    ledger.stop()
