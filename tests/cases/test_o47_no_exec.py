"""O47: nothing depends on exec, whose exit code and output get lost: the result is uploaded, whole or not at all."""

import asyncio
from pathlib import Path

import pytest

from tasks.kube import manifest
from tests.kube.pods import Pod
from tests.tasks.kube.processes import real_pods
from tests.tasks.kube.support import Sidecar
from tests.tasks.kube.support import backend
from tests.tasks.kube.support import result
from tests.tasks.kube.support import spec
from training.child import free_port

LINES = {
    "5 MB then exit 3": ("head -c 5000000 /dev/zero | tr '\\0' x; exit 3", b"x" * 5_000_000, 3),
    "binary with byte 0xff": (r"printf '\377\000\376'", b"\xff\x00\xfe", 0),
}


@pytest.mark.parametrize(("line", "output", "code"), LINES.values(), ids=LINES.keys())
async def test_o47_exit_code_and_every_byte(
    line: str, output: bytes, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "PORT", free_port())
    one = spec(tmp_path, argv=("bash", "-c", line), payload=None, binds_ro={})
    async with real_pods(tmp_path) as (c, sandbox):
        outcome = await sandbox.run(one)
        assert not [kind for kind in c.requests if "exec" in kind[1] or "log" in kind[1]]
    assert (outcome.reason, outcome.exit_code) == ("exited", code)
    assert outcome.stdout_path.read_bytes() == output


async def test_o47_a_connection_closed_after_1_mb_is_an_error(tmp_path: Path) -> None:
    async def script(pod: Pod) -> None:
        await pod.schedule()
        pod.running()
        sidecar = Sidecar(pod)
        body = result("0", files={"workspace/large.bin": bytes(3 << 20)})
        host, port = sidecar.url.split("/")[2].split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        path = sidecar.url.partition(port)[2]
        head = f"PUT {path}/result HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {await sidecar.key()}\r\n"
        writer.write(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body[: 1 << 20])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        pod.exited(0)

    one = spec(tmp_path)
    (one.workspace / "given.txt").write_text("given")
    async with backend(script) as (_, sandbox):
        outcome = await sandbox.run(one)
        assert sandbox._opened and not list(sandbox._opened.collector._folder.iterdir())
    assert (outcome.reason, outcome.exit_code) == ("lost", None)
    assert "sent no result" in outcome.detail
    assert [path.name for path in one.workspace.iterdir()] == ["given.txt"]
