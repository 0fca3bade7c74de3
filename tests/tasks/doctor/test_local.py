import asyncio
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tasks.doctor import Check
from tasks.doctor import local
from tasks.doctor import versions
from tasks.doctor.__main__ import main
from tasks.run import ROOT
from tests.tasks.harnesses.real import installed


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout in which nothing has been installed."""
    file = tmp_path / versions.FILE
    file.parent.mkdir(parents=True)
    shutil.copy(ROOT / versions.FILE, file)
    return tmp_path


def found(checks: Iterator[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_fresh_checkout(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "FREE_GB", 10**9)
    checks = found(local.check_local(project))
    assert checks["python"].ok
    assert (checks["disk"].ok, checks["claude_code"].ok, checks["codex"].ok) == (False, False, False)
    assert "run `make harnesses`" in checks["claude_code"].text
    # Not among those that a run takes by default: told, and no failure.
    assert checks["opencode"].ok is None and "make harnesses-all" in checks["opencode"].text


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_real_harnesses_of_this_checkout() -> None:
    pinned = json.loads((ROOT / "deploy/harnesses/package.json").read_text())["dependencies"]
    check = local._harness(ROOT, "claude_code")
    assert (check.ok, check.text) == (True, pinned["@anthropic-ai/claude-code"])


@pytest.mark.slow
@pytest.mark.parametrize("name", versions.PYTHON_PACKAGES)
def test_a_harness_in_python_is_asked_for_its_package(name: str) -> None:
    installed(name)
    check = local._harness(ROOT, name)
    assert (check.ok, check.text) == (True, versions.wanted(ROOT)[name])


def test_a_harness_of_another_version(project: Path) -> None:
    pinned = json.loads((project / versions.FILE).read_text())
    pinned["dependencies"]["@openai/codex"] = "9.9.9"
    (project / versions.FILE).write_text(json.dumps(pinned))
    (project / ".openforge").mkdir()
    (project / ".openforge" / "harnesses").symlink_to((ROOT / ".openforge" / "harnesses").resolve())
    check = local._harness(project, "codex")
    assert check.ok is False
    assert "pins 9.9.9" in check.text


async def test_the_port_of_prefect() -> None:
    async def health(_: web.Request) -> web.Response:
        return web.json_response(True)

    app = web.Application()
    app.add_routes([web.get("/api/health", health)])
    async with TestServer(app) as prefect, TestServer(web.Application()) as other:
        ours = await asyncio.to_thread(local._port, ("127.0.0.1", prefect.port or 0))
        taken = await asyncio.to_thread(local._port, ("127.0.0.1", other.port or 0))
    assert ours.ok and "a Prefect server answers" in ours.text
    assert taken.ok is False and "taken by another program" in taken.text
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert local._port(("127.0.0.1", port)).text == f"127.0.0.1:{port} is free"


def test_no_cluster_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["--profile", "kubernetes"]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("FAIL  API server: ") and "set KUBECONFIG" in first
    assert last == "doctor: 1 check failed"
