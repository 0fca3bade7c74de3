"""The real sidecar beside the real script: what a pod does, with processes for containers and in real ones."""

import asyncio
import os
from collections.abc import Awaitable
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web

from tasks.kube import manifest
from tasks.kube.collector import Collector
from tasks.kube.sidecar import walk
from tasks.rollout import remove
from tasks.sandboxes import Outcome
from tasks.sandboxes import choose
from tasks.verify import verify
from tests.kube import memory
from tests.kube import scripts
from tests.tasks.kube.processes import real_pods
from tests.tasks.kube.support import spec
from training.child import free_port

Shell = Callable[..., Awaitable[tuple[Outcome, str]]]


@pytest.fixture(params=["mounted", "containers"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shell(kind: str) -> Shell:
    """Run a line in a pod; the outcome and its standard output."""

    async def run(folder: Path, line: str, **fields: Any) -> tuple[Outcome, str]:
        one = spec(folder, argv=("bash", "-c", line), payload=None, binds_ro={}, **fields)
        async with real_pods(folder, kind=kind) as (_, sandbox):
            outcome = await asyncio.wait_for(sandbox.run(one), 25)
        return outcome, outcome.stdout_path.read_text(errors="replace")

    return run


@pytest.fixture(autouse=True)
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """Pods have a network of their own, processes have not: 8080 may be taken."""
    chosen = free_port()
    monkeypatch.setattr(manifest, "PORT", chosen)
    return chosen


async def test_exit_code_output_environment_and_workspace(tmp_path: Path, shell: Shell) -> None:
    one = spec(tmp_path)
    (one.workspace / "given.txt").write_text("given\n")
    (one.workspace / "tool.sh").write_text("#!/bin/sh\necho ran\n")
    (one.workspace / "tool.sh").chmod(0o755)
    (one.home / ".settings").write_text("set\n")
    line = """
        cat given.txt ~/.settings; ./tool.sh; echo "$QUOTED"; echo oh >&2
        echo made > made.txt; ln made.txt twin.txt; ln -s /etc/passwd out; mkdir deep; chmod 000 deep; mkfifo pipe
        rm given.txt; exit 3
    """
    outcome, out = await shell(tmp_path, line, env={"QUOTED": "it's $HOME {command} `x`"})
    assert (outcome.reason, outcome.exit_code) == ("exited", 3)
    assert out == "given\nset\nran\nit's $HOME {command} `x`\n"
    assert outcome.stderr_path.read_text() == "oh\n"
    left = {path.name for path in one.workspace.iterdir()}
    assert left == {"tool.sh", "made.txt", "twin.txt", "out", "deep", "pipe"}
    assert (one.workspace / "twin.txt").read_text() == "made\n"
    assert os.readlink(one.workspace / "out") == "/etc/passwd"
    assert os.access(one.workspace / "tool.sh", os.X_OK)


@pytest.mark.parametrize(
    ("folder", "times", "reason"),
    [("d", 3000, "folders more than 100 deep"), ("d" * 250, 30, "a path of more than 2048 bytes")],
)
async def test_a_workspace_deeper_than_paths_and_stacks_is_not_scored(
    tmp_path: Path, shell: Shell, folder: str, times: int, reason: str
) -> None:
    """Deeper than Python recurses and than a path may be long: it ends as it does in a local sandbox."""
    line = f"python3 -c \"import os; [(os.mkdir('{folder}'), os.chdir('{folder}')) for _ in range({times})]\"; exit 3"
    try:
        outcome, _ = await shell(tmp_path, line)
    finally:
        remove(tmp_path / "pods")
    assert (outcome.reason, outcome.exit_code) == ("exited", 3)
    (tmp_path / "task/tests").mkdir(parents=True)
    (tmp_path / "task/tests/test.sh").write_text("exit 1\n")
    verdict = await verify(tmp_path / "task", spec(tmp_path).workspace, 1.0, choose())
    assert (verdict.reward, verdict.flags) == (None, ("workspace not scored",))
    assert verdict.reason == f"the workspace has {reason}; it was not scored"


def test_what_passes_a_bound_is_seen_and_nothing_below_or_after_it(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    wide = {"depth": 100, "path": 100, "files": 100}
    assert list(walk(str(tmp_path), wide)) == list(walk(str(tmp_path))) == ["a", "link", "a/b", "a/b/c"]
    assert list(walk(str(tmp_path), wide | {"depth": 1})) == ["a", "link", "a/b"]
    assert list(walk(str(tmp_path), wide | {"path": 2})) == ["a", "link", "a/b"]
    assert list(walk(str(tmp_path), wide | {"files": 1})) == ["a", "link"]


async def test_timeout_kills_what_hides_and_keeps_the_work(tmp_path: Path, shell: Shell) -> None:
    line = "echo half > half.txt; setsid sleep 97161 & sleep 97161"
    outcome, _ = await shell(tmp_path, line, wall_s=1.0)
    assert (outcome.reason, outcome.exit_code, outcome.detail) == ("timeout", None, "killed after 1 s")
    assert (spec(tmp_path).workspace / "half.txt").read_text() == "half\n"
    assert not [p for p in psutil.process_iter(["cmdline"]) if "97161" in (p.info["cmdline"] or [])]


async def test_the_end_of_the_command_is_the_end_of_all(tmp_path: Path, shell: Shell) -> None:
    outcome, _ = await shell(tmp_path, "setsid sleep 97162 & sleep 0.1")
    assert (outcome.reason, outcome.exit_code) == ("exited", 0)
    assert outcome.wall_s < 10


@pytest.mark.skipif(not memory.enforced(), reason="control groups cannot be made here")
@pytest.mark.parametrize(("then", "reason", "code"), [("", "oom", 137), ("; exit 0", "exited", 0)])
async def test_memory(tmp_path: Path, shell: Shell, then: str, reason: str, code: int) -> None:
    """An agent that goes on without what was killed is none that was."""
    outcome, _ = await shell(tmp_path, f"python3 -c 'bytearray(2**30)'{then}", memory_mb=64)
    assert (outcome.reason, outcome.exit_code) == (reason, code)
    assert outcome.detail == ("killed at the memory limit of 64 MB" if reason == "oom" else "")


async def test_a_program_that_is_not_there(tmp_path: Path, kind: str) -> None:
    one = spec(tmp_path, argv=("no-such-harness", "--now"), payload=None, binds_ro={})
    async with real_pods(tmp_path, kind=kind) as (_, sandbox):
        outcome = await sandbox.run(one)
    assert (outcome.reason, outcome.detail) == ("start_failed", "no-such-harness: not found")


async def test_no_call_in_time(tmp_path: Path, shell: Shell, port: int) -> None:
    fields = {"proxy": ("127.0.0.1", 1), "first_call_s": 1.0}
    outcome, _ = await shell(tmp_path / "a", "echo Trust this folder?; sleep 30", **fields)
    assert outcome.detail == "no model call within 1 s; its last lines: Trust this folder?"
    outcome, _ = await shell(tmp_path / "b", f"exec 3<>/dev/tcp/127.0.0.1/{port}; sleep 1.5", **fields)
    assert outcome.reason == "exited"


async def test_the_proxy_is_at_hand(tmp_path: Path, shell: Shell, port: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"you said " + await reader.readline())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        address = server.sockets[0].getsockname()[:2]
        line = f"exec 3<>/dev/tcp/127.0.0.1/{port}; echo hello >&3; cat <&3"
        _, out = await shell(tmp_path, line, proxy=address)
    assert out == "you said hello\n"


async def test_an_agent_cannot_stop_its_own_end(tmp_path: Path, shell: Shell) -> None:
    outcome, _ = await shell(tmp_path, "kill -STOP $PPID; sleep 97163", wall_s=0.5)
    assert outcome.reason == "timeout"


async def test_files_that_break_off_are_fetched_again(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = Collector._input, [True]

    async def once(self: Collector, http: web.Request) -> web.StreamResponse:
        if not broken:
            return await whole(self, http)
        broken.pop()
        return web.Response(body=b"run\0" + bytes(1000))

    monkeypatch.setattr(Collector, "_input", once)
    outcome, out = await shell(tmp_path, "echo hi")
    assert (outcome.exit_code, out, broken) == (0, "hi\n", [])


async def test_a_pod_that_fails_to_fetch_did_not_start(tmp_path: Path) -> None:
    async with real_pods(tmp_path) as (c, sandbox):
        c.script = scripts.init_exits(1, "fetch")
        with pytest.raises(Exception, match="init container fetch ended with 1"):
            await sandbox.run(spec(tmp_path))
