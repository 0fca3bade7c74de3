"""Who may fetch and leave what, and that a result is taken whole or not at all."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from proxy_addons.errors import InfrastructureError
from tasks.kube.collector import Collector
from tasks.kube.collector import Expected
from tasks.kube.collector import Inputs
from tasks.kube.collector import unpack
from tests.tasks.kube.support import content
from tests.tasks.kube.support import result


@pytest.fixture
async def collector(tmp_path: Path) -> AsyncIterator[Collector]:
    async with Collector(("127.0.0.1", 0), tmp_path / "collector") as it:
        yield it


def expect(collector: Collector, folder: Path, max_bytes: int = 1 << 20) -> Expected:
    (folder / "workspace").mkdir()
    (folder / "workspace/a.txt").write_text("a")
    inputs: Inputs = {"workspace": folder / "workspace", "control": {"run": "echo ü"}}
    return collector.expect("one", inputs, max_bytes, asyncio.Event())


async def ask(collector: Collector, method: str, path: str, key: str, data: bytes | None = None) -> tuple[int, bytes]:
    url, headers = f"http://127.0.0.1:{collector.port}{path}", {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers, data=data) as answer:
        return answer.status, await answer.read()


async def test_input(collector: Collector, tmp_path: Path) -> None:
    expected = expect(collector, tmp_path)
    status, body = await ask(collector, "GET", "/pods/one/input", expected.key)
    assert status == 200
    assert content(body) == {"workspace/a.txt": b"a", "control/run": "echo ü".encode()}


@pytest.mark.parametrize("key", ["", "wrong"])
async def test_another_key_opens_nothing(collector: Collector, tmp_path: Path, key: str) -> None:
    expected = expect(collector, tmp_path)
    assert (await ask(collector, "GET", "/pods/one/input", key))[0] == 401
    assert (await ask(collector, "PUT", "/pods/one/result", key, result()))[0] == 401
    assert (await ask(collector, "GET", "/pods/two/input", expected.key))[0] == 404
    assert expected.record is None


async def test_the_first_result_counts(collector: Collector, tmp_path: Path) -> None:
    expected = expect(collector, tmp_path)
    for said in ("0", "1"):
        assert (await ask(collector, "PUT", "/pods/one/result", expected.key, result(said)))[0] == 200
    assert expected.news.is_set() and expected.record and expected.record["said"] == "0"


async def test_a_result_too_large_leaves_nothing(collector: Collector, tmp_path: Path) -> None:
    expected = expect(collector, tmp_path, max_bytes=1000)
    assert (await ask(collector, "PUT", "/pods/one/result", expected.key, result()))[0] == 413
    assert expected.record is None
    assert not list((tmp_path / "collector").iterdir())


async def test_what_is_no_result_is_refused(collector: Collector, tmp_path: Path) -> None:
    expected = expect(collector, tmp_path)
    status, text = await ask(collector, "PUT", "/pods/one/result", expected.key, b"abc")
    assert (status, text.startswith(b"no result")) == (400, True)
    assert expected.record is None and not list((tmp_path / "collector").iterdir())


async def test_forgotten_is_void(collector: Collector, tmp_path: Path) -> None:
    expected = expect(collector, tmp_path)
    await ask(collector, "PUT", "/pods/one/result", expected.key, result())
    collector.forget("one")
    assert (await ask(collector, "PUT", "/pods/one/result", expected.key, result()))[0] == 404
    assert not list((tmp_path / "collector").iterdir())


async def test_a_port_in_use_is_one_clear_line(collector: Collector, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=rf"the collector cannot listen at \('127.0.0.1', {collector.port}\)"):
        async with Collector(("127.0.0.1", collector.port), tmp_path):
            pass


def _link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def _file(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = 3
    return member


EVIL: dict[str, Callable[[], list[tarfile.TarInfo]]] = {
    "through a link": lambda: [_link("workspace/out", "/tmp"), _file("workspace/out/x")],
    "up": lambda: [_file("workspace/../../x")],
    "link up": lambda: [_link("workspace/../../x", "a")],
    "hard link": lambda: [_link("workspace/x", "/etc/passwd", tarfile.LNKTYPE)],
    "device": lambda: [_link("workspace/x", "", tarfile.CHRTYPE)],
}


@pytest.mark.parametrize("members", EVIL.values(), ids=EVIL.keys())
def test_nothing_is_written_outside(tmp_path: Path, members: Callable[[], list[tarfile.TarInfo]]) -> None:
    file = io.BytesIO(result())
    with tarfile.open(fileobj=file, mode="a") as tar:
        for member in members():
            tar.addfile(member, io.BytesIO(b"bad") if member.isreg() else None)
    workspace = tmp_path / "box/deep/workspace"
    workspace.mkdir(parents=True)
    (workspace.parent / "mine.txt").write_text("mine")
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(InfrastructureError, match="the pod's result cannot be read"):
        unpack(file, workspace.parent / "log", {"workspace": workspace})
    after = [path for path in sorted(tmp_path.rglob("*")) if not {"log", "workspace"} & set(path.parent.parts)]
    assert [path for path in after if path.name != "log"] == before, "nothing changed but the log and the workspace"


def test_links_that_lead_out_are_kept_as_links(tmp_path: Path) -> None:
    file = io.BytesIO(result(files={"workspace/a.txt": b"a"}))
    with tarfile.open(fileobj=file, mode="a") as tar:
        tar.addfile(_link("workspace/out", "/etc/passwd"))
    (tmp_path / "workspace").mkdir()
    unpack(file, tmp_path / "log", {"workspace": tmp_path / "workspace"})
    assert (tmp_path / "workspace/out").is_symlink()
    assert (tmp_path / "workspace/a.txt").read_text() == "a"
