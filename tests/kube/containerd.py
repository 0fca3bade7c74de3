"""A containerd of the tests' own, with its own folder and socket, and images made of this machine's files.

No registry can be reached, so an image is a few folders and links; the machine's `/usr` and Python come in as mounts
(`host_files`), read-only. It has no user but root and nobody, like the images that rollouts run in.
"""

import asyncio
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterable
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
from cri_api.v1 import api_pb2 as cri
from cri_api.v1.api_pb2_grpc import ImageServiceStub
from cri_api.v1.api_pb2_grpc import RuntimeServiceStub

from tasks.sandboxes import runc
from tasks.sandboxes.mounts import links
from tests.kube import memory

PAUSE = "openforge.test/pause:1"
# The native snapshotter copies: it works on every file system, and there is next to nothing to copy.
# restrict_oom_score_adj: a machine that is a container itself may not lower it.
_CONFIG = """\
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
address = "{folder}/socket"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{folder}/none"
conf_dir = "{folder}/none"
"""
_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing() -> str | None:
    """Why real containers can't be had here, with the remedy; None if they can."""
    if not shutil.which("containerd") or not shutil.which("ctr"):
        return "containerd is not installed: apt install containerd"
    return runc.missing() or (None if memory.enforced() else "control groups cannot limit memory here")


class Containerd:
    """A running one. `runtime` and `images` are its CRI services; they raise `grpc.aio.AioRpcError`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._channel = grpc.aio.insecure_channel(f"unix://{folder}/socket")
        self.runtime = RuntimeServiceStub(self._channel)
        self.images = ImageServiceStub(self._channel)

    async def close(self) -> None:
        """End what still runs; a shim outlives its containerd."""
        for pod in (await self.runtime.ListPodSandbox(cri.ListPodSandboxRequest())).items:
            await self.remove_pod(pod.id)
        await self._channel.close()

    async def remove_pod(self, sandbox: str) -> None:
        """Kill all that runs in a pod's sandbox, and forget it."""
        await stubborn(self.runtime.StopPodSandbox, cri.StopPodSandboxRequest(pod_sandbox_id=sandbox))
        await stubborn(self.runtime.RemovePodSandbox, cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox))


async def stubborn(call: Callable[[Any], Awaitable[Any]], request: Any) -> None:
    """Ask until it is done, as a kubelet does: what just begins or ends answers with an error."""
    async with asyncio.timeout(20):
        while True:
            try:
                await call(request)
                return
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def running_containerd(images: Iterable[str]) -> AsyncIterator[Containerd]:
    """A containerd that has these images, all alike, for the time of the block."""
    folder = Path(tempfile.mkdtemp(prefix="openforge-cri-"))  # short: a socket's path may have 107 bytes
    (folder / "config.toml").write_text(_CONFIG.format(folder=folder, pause=PAUSE))
    log = (folder / "log").open("wb")
    process = await asyncio.create_subprocess_exec(
        "containerd", "--config", str(folder / "config.toml"), stdout=log, stderr=log
    )
    daemon = Containerd(folder)
    try:
        await _ready(daemon)
        archive = folder / "images.tar"
        _write_images(archive, sorted(images))
        await _ctr(folder, "images", "import", "--snapshotter=native", str(archive))
        for name in (PAUSE, *images):
            await _known(daemon, name)
        yield daemon
    except BaseException as error:
        error.add_note((folder / "log").read_text(errors="replace")[-3000:])
        raise
    finally:
        await daemon.close()
        process.terminate()
        await process.wait()
        log.close()
        for group in (*Path("/sys/fs/cgroup").glob(f"*/{memory.PARENT}"), Path("/sys/fs/cgroup", memory.PARENT)):
            with contextlib.suppress(OSError):  # not there, or another test's
                group.rmdir()
        shutil.rmtree(folder)


def host_files() -> list[Path]:
    """What of this machine every container sees at its own path: programs, and the Python of these tests."""
    system = [Path("/usr"), Path("/etc/alternatives"), Path("/etc/ssl/certs")]
    python = {Path(sys.prefix), Path(sys.base_prefix)}
    return [*(path for path in system if path.exists()), *(p for p in python if not p.is_relative_to("/usr"))]


async def _ready(daemon: Containerd) -> None:
    async with asyncio.timeout(20):
        while not (daemon.folder / "socket").exists():  # asked before, gRPC would wait a second to ask again
            await asyncio.sleep(0.01)
    await stubborn(partial(daemon.runtime.Version, wait_for_ready=True), cri.VersionRequest())  # it answers too early


async def _known(daemon: Containerd, name: str) -> None:
    """Its CRI side hears of an import a little later."""
    request = cri.ImageStatusRequest(image=cri.ImageSpec(image=name))
    async with asyncio.timeout(20):
        while not (await daemon.images.ImageStatus(request)).image.id:
            await asyncio.sleep(0.02)


async def _ctr(folder: Path, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *("ctr", "--address", str(folder / "socket"), "--namespace", "k8s.io", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()


def _write_images(file: Path, names: list[str]) -> None:
    """An archive as `docker save` writes it: what pods run in under all `names`, and the image of their sandboxes."""
    base = _layer(links(), {f"etc/{name}": text.encode() for name, text in _ETC.items()})
    # A machine's own `sleep` and what it links to: all that has to be in there is one process that stays.
    needed = re.findall(r"(/\S+) \(", subprocess.run(["ldd", "/usr/bin/sleep"], capture_output=True, text=True).stdout)
    pause = _layer({}, {path.lstrip("/"): Path(path).read_bytes() for path in ("/usr/bin/sleep", *needed)})
    path = f"PATH={Path(sys.executable).parent}:{_PATH}"
    with tarfile.open(file, "w") as tar:
        rows = [
            _image(tar, base, names, {"Env": [path]}),
            _image(tar, pause, [PAUSE], {"Entrypoint": ["/usr/bin/sleep", "infinity"]}),
        ]
        _add(tar, "manifest.json", json.dumps(rows).encode())


def _image(tar: tarfile.TarFile, layer: bytes, names: list[str], settings: dict[str, list[str]]) -> dict[str, object]:
    digest = sha256(layer).hexdigest()
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    config = {"architecture": architecture, "os": "linux", "config": settings}
    config |= {"rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}}
    _add(tar, f"{digest}/layer.tar", layer)
    _add(tar, f"{digest}.json", json.dumps(config).encode())
    return {"Config": f"{digest}.json", "RepoTags": names, "Layers": [f"{digest}/layer.tar"]}


def _layer(symlinks: dict[str, str], files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("etc", "home", "opt", "proc", "root", "run", "sys", "tmp", "usr", "var"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        for path, target in symlinks.items():
            link = tarfile.TarInfo(path.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for name, data in files.items():
            _add(tar, name, data, 0o755 if "bin/" in name or "lib" in name else 0o644)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), mode
    tar.addfile(member, io.BytesIO(data))
