"""O44, the local sandboxes' part: out of memory and killed are told from each other and from an exit code.

Each is an infrastructure failure with its reason, and none is a reward.
"""

import asyncio
import os
import signal
from pathlib import Path

import psutil

from tasks import harnesses
from tasks.sandboxes import Outcome
from tests.tasks.boxes import BACKENDS
from tests.tasks.boxes import here
from tests.tasks.boxes import shell
from tests.tasks.boxes import spec

EAT = "exec python3 -c 'x = bytearray(300 << 20)'"


def classified(outcome: Outcome) -> tuple[str, str | None, bool]:
    end = harnesses.end(harnesses.load("codex"), outcome, calls=3, base_url="http://127.0.0.1:8080/r/x")
    return end.exit, end.error_class, end.scored


async def test_o44_out_of_memory(tmp_path: Path) -> None:
    outcome, _ = await shell(here("runc"), tmp_path, EAT, memory_mb=128)
    assert outcome.reason == "oom"
    assert outcome.detail == "1 process(es) killed at the memory limit of 128 MB"
    assert classified(outcome) == ("lost", "InfrastructureError", False)


async def test_o44_a_tool_out_of_memory_is_the_agents_own_affair(tmp_path: Path) -> None:
    outcome, out = await shell(here("runc"), tmp_path, f"({EAT}); echo survived $?", memory_mb=128)
    assert (outcome.reason, outcome.exit_code, out) == ("exited", 0, "survived 137\n")
    assert "killed at the memory limit" in outcome.detail


@BACKENDS
async def test_o44_exit_137_is_only_an_exit_code(backend: str, tmp_path: Path) -> None:
    outcome, _ = await shell(here(backend), tmp_path, "exit 137")
    assert (outcome.reason, outcome.exit_code, outcome.detail) == ("exited", 137, "")


@BACKENDS
async def test_o44_killed_by_a_signal(backend: str, tmp_path: Path) -> None:
    outcome, _ = await shell(here(backend), tmp_path, "kill -9 $$")
    assert (outcome.reason, outcome.exit_code, outcome.detail) == ("killed", None, "ended by signal 9")
    assert classified(outcome) == ("lost", "InfrastructureError", False)


@BACKENDS
async def test_o44_sandbox_killed_from_outside(backend: str, tmp_path: Path) -> None:
    task = asyncio.create_task(here(backend).run(spec(tmp_path, "sleep 98771")))
    init = None
    while init is None:
        await asyncio.sleep(0.05)
        found = [p for p in psutil.process_iter(["cmdline"]) if "98771" in (p.info["cmdline"] or [])[-1:]]
        init = found[0].parent() if found else None
    os.kill(init.pid, signal.SIGKILL)
    outcome = await asyncio.wait_for(task, 10)
    assert (outcome.reason, outcome.detail) == ("killed", "the sandbox was killed from outside")
    assert classified(outcome) == ("lost", "InfrastructureError", False)
