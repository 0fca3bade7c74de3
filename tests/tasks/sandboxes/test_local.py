"""What every local backend promises, with real sandboxes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from proxy_addons.errors import InfrastructureError
from tasks.sandboxes import local
from tests.tasks.boxes import BACKENDS
from tests.tasks.boxes import NAME
from tests.tasks.boxes import here
from tests.tasks.boxes import shell
from tests.tasks.boxes import spec

REPOSITORY = Path(__file__).parents[3]


def ours() -> list[str]:
    """The boxes of these tests that are still there; another run's are none of our business."""
    return [name for name, _ in local.boxes() if name in (NAME, "dead-controller", "reaped")]


def running(mark: str) -> list[psutil.Process]:
    """Processes of the host that have `mark` among their arguments, whatever namespace they are in."""
    return [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]


def gone(mark: str, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while running(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not running(mark)


@BACKENDS
async def test_exit_code_output_and_workspace(backend: str, tmp_path: Path) -> None:
    outcome, out = await shell(here(backend), tmp_path, "echo hi; echo oh >&2; echo made > made.txt; exit 3")
    assert (outcome.reason, outcome.exit_code, out) == ("exited", 3, "hi\n")
    assert outcome.stderr_path.read_text() == "oh\n"
    assert (tmp_path / "workspace/made.txt").read_text() == "made\n"
    assert outcome.cpu_s is not None and 0 < outcome.cpu_s < outcome.wall_s + 1
    assert not ours()


@BACKENDS
async def test_user_has_no_power_and_sees_only_its_own(backend: str, tmp_path: Path) -> None:
    line = f"""
        id -u; pwd; echo $HOME; grep CapEff /proc/self/status; grep NoNewPrivs /proc/self/status
        ls {REPOSITORY} {tmp_path} /root /home/agent/.. 2>/dev/null; ls /proc | grep -c '^[0-9]'
        touch /x /usr/x /etc/x 2>/dev/null || echo read-only; unshare -Ur true 2>/dev/null || echo no-namespaces
    """
    _, out = await shell(here(backend), tmp_path, line)
    user, cwd, home, caps, privileges, *rest = out.split("\n")
    assert (user, cwd, home) == ("1000", "/workspace", "/home/agent")
    assert caps.split()[1].strip("0") == "" and privileges.split()[1] == "1"
    assert rest[0:2] == ["/home/agent/..:", "agent"]
    assert int(rest[2]) < 8
    assert rest[3:5] == ["read-only", "no-namespaces"]


@BACKENDS
async def test_environment_is_only_what_was_given(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "do not tell")
    _, out = await shell(here(backend), tmp_path, "env", env={"GIVEN": "1"})
    assert "GIVEN=1\n" in out and "SECRET_OF_THE_HOST" not in out


@BACKENDS
async def test_no_network_but_the_bridge(backend: str, tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"you said " + await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    line = f"""
        exec 3<>/dev/tcp/127.0.0.1/8080 && printf hello >&3
        python3 -c 'import socket; s = socket.socket(fileno=3); s.shutdown(1); print(s.recv(99).decode())'
        (exec 4<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null || echo closed
        grep -vc lo: /proc/net/dev
    """
    async with server:
        outcome, out = await shell(here(backend), tmp_path, line, proxy=("127.0.0.1", port))
    assert out.split("\n") == ["you said hello", "closed", "2", ""], outcome.stderr_path.read_text()


@BACKENDS
async def test_a_proxy_that_is_away_closes_the_connection(backend: str, tmp_path: Path) -> None:
    line = "exec 3<>/dev/tcp/127.0.0.1/8080; timeout 5 cat <&3; echo $?"
    _, out = await shell(here(backend), tmp_path, line, proxy=("127.0.0.1", 1))
    assert out in ("0\n", "1\n")


@BACKENDS
async def test_timeout_kills_what_hides(backend: str, tmp_path: Path) -> None:
    line = """
        python3 -c '
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for n in (0, 1, 2):
            os.close(n)
        os.execvp("sleep", ["sleep", "98761"])
'
        sleep 98761
    """
    outcome, _ = await shell(here(backend), tmp_path, line, wall_s=1.0)
    assert (outcome.reason, outcome.exit_code) == ("timeout", None)
    assert outcome.wall_s < 6 and "1 s" in outcome.detail
    assert gone("98761", 0.5)


@BACKENDS
async def test_end_of_the_command_is_the_end_of_all(backend: str, tmp_path: Path) -> None:
    outcome, _ = await shell(here(backend), tmp_path, "setsid sleep 98762 & sleep 0.2")
    assert outcome.reason == "exited" and outcome.wall_s < 5
    assert gone("98762", 0.5)


@BACKENDS
async def test_cancelling_kills_everything_first(backend: str, tmp_path: Path) -> None:
    task = asyncio.create_task(here(backend).run(spec(tmp_path, "sleep 98763")))
    while not running("98763"):
        await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not running("98763") and not ours()


@BACKENDS
async def test_cancelling_at_once_leaves_nothing(backend: str, tmp_path: Path) -> None:
    for delay in (0.0, 0.01, 0.03, 0.06):
        task = asyncio.create_task(here(backend).run(spec(tmp_path, "sleep 98764")))
        await asyncio.sleep(delay)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gone("98764", 1) and not ours()


@BACKENDS
def test_dead_controller_takes_the_sandbox_along(backend: str, tmp_path: Path) -> None:
    here(backend)
    code = f"""
import asyncio
from pathlib import Path
from tasks.sandboxes import choose
from tests.tasks.boxes import spec
asyncio.run(choose({backend!r}).run(spec(Path({str(tmp_path)!r}), "sleep 98765", name="dead-controller")))
"""
    controller = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY)
    while not running("98765"):
        assert controller.poll() is None
        time.sleep(0.05)
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    assert gone("98765")
    assert here(backend).reap("somebody-else") == []
    assert here(backend).reap("dead-") == ["dead-controller"]
    assert not ours()


@BACKENDS
async def test_reap_kills_a_live_one(backend: str, tmp_path: Path) -> None:
    task = asyncio.create_task(here(backend).run(spec(tmp_path, "sleep 98766", name="reaped")))
    while not running("98766"):
        await asyncio.sleep(0.05)
    process = subprocess.run(
        [sys.executable, "-c", f"from tasks.sandboxes import choose; print(choose({backend!r}).reap('reaped'))"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert process.stdout == "['reaped']\n", process.stderr
    with pytest.raises(InfrastructureError, match="reaped: another process removed it"):
        await task
    assert gone("98766")


@BACKENDS
async def test_program_that_cannot_be_executed(backend: str, tmp_path: Path) -> None:
    outcome = await here(backend).run(spec(tmp_path, "", argv=("/opt/nothing",)))
    assert outcome.reason == "start_failed"
    assert outcome.detail == "/opt/nothing: No such file or directory"


@BACKENDS
async def test_sandbox_that_cannot_be_built_is_ours(backend: str, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=rf"sandbox {NAME}: it did not start .*missing"):
        await shell(here(backend), tmp_path, "true", binds_ro={"/opt/x": tmp_path / "missing"})
    assert not ours()


@BACKENDS
async def test_binds(backend: str, tmp_path: Path) -> None:
    for name in ("fixed", "free"):
        (tmp_path / name).mkdir()
    line = "touch /opt/fixed/x 2>/dev/null || echo read-only; touch /free/x"
    binds = {"binds_ro": {"/opt/fixed": tmp_path / "fixed"}, "binds_rw": {"/free": tmp_path / "free"}}
    _, out = await shell(here(backend), tmp_path, line, **binds)
    assert out == "read-only\n" and (tmp_path / "free/x").exists()


@BACKENDS
async def test_process_limit(backend: str, tmp_path: Path) -> None:
    sandbox = here(backend)
    if "pids" in sandbox.not_enforced():
        pytest.skip("says itself that it does not hold this limit")
    code = """
import os, time
for n in range(60):
    try:
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
    except BlockingIOError:
        print(n)
        break
"""
    _, out = await shell(sandbox, tmp_path, f"exec python3 -c '{code}'", pids=20)
    assert 10 < int(out) < 20


@BACKENDS
async def test_no_call_in_time(backend: str, tmp_path: Path) -> None:
    fields = {"proxy": ("127.0.0.1", 1), "first_call_s": 1.0}
    outcome, _ = await shell(here(backend), tmp_path, "echo Trust this folder?; sleep 30", **fields)
    assert outcome.reason == "no_call" and outcome.wall_s < 6
    assert outcome.detail == "no model call within 1 s; its last lines: Trust this folder?"
    outcome, _ = await shell(here(backend), tmp_path, "exec 3<>/dev/tcp/127.0.0.1/8080; sleep 1.5", **fields)
    assert outcome.reason == "exited"


def test_home_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"openforge-{os.geteuid()}").symlink_to("/tmp")
    with pytest.raises(InfrastructureError, match="belongs to somebody else"):
        list(local.boxes())


def test_give_reaches_folders_deeper_than_python_recurses(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    deepest = tmp_path
    for _ in range(sys.getrecursionlimit() + 50):
        deepest /= "d"
        deepest.mkdir()
    local.give(tmp_path, 1000)
    assert deepest.stat().st_uid == 1000
    while deepest != tmp_path:  # pytest's own cleaning calls itself, too
        deepest.rmdir()
        deepest = deepest.parent


def test_give_does_not_follow_links(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.touch()
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    local.give(folder, 1000)
    assert (outside.stat().st_uid, (folder / "link").lstat().st_uid, folder.stat().st_uid) == (0, 1000, 1000)


@BACKENDS
async def test_tools_are_a_way_of_their_own(backend: str, tmp_path: Path) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"tools")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    line = "timeout 5 cat < /dev/tcp/127.0.0.1/8081; cat < /dev/tcp/127.0.0.1/8080 || echo refused"
    async with server:
        _, out = await shell(here(backend), tmp_path, line, tools=address)
    assert out == "toolsrefused\n"
