"""A cluster whose scripted pods do what our pods do: fetch their files, run for a while, leave a result, exit."""

import asyncio
import base64
import io
import json
import tarfile
from collections.abc import AsyncIterator
from collections.abc import Callable
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from proxy_addons.identity import Rollout
from tasks.kube.settings import Bounds
from tasks.kube.settings import Settings
from tasks.sandboxes import Spec
from tasks.sandboxes.kubernetes import Kubernetes
from tests.kube.cluster import Cluster
from tests.kube.cluster import cluster
from tests.kube.kubelet import Script
from tests.kube.pods import Pod
from training.child import free_port

IMAGE = "registry.test/task:1"
QUICK = Bounds(schedule_s=5, create_s=5, config_s=0.5, record_s=1, delete_s=1, api_s=5)


def settings(**fields: Any) -> Settings:
    port = free_port()
    given: dict[str, Any] = {
        "run": "night",
        "namespace": "openforge",
        "image": IMAGE,
        "sidecar_image": "registry.test/sidecar:1",
        "payloads": {"claude_code": "registry.test/claude-code:1"},
        "collector_url": f"http://127.0.0.1:{port}",
        "collector_listen": ("127.0.0.1", port),
        "creates_per_s": 1000.0,
        "bounds": QUICK,
        **fields,
    }
    return Settings(**given)


def spec(folder: Path, task: str = "sum", sample: int = 0, try_: int = 0, **fields: Any) -> Spec:
    """A rollout's spec, its folders below `folder`."""
    rollout = Rollout("night", 1, task, sample, try_)
    place = folder / rollout.id
    for name in ("workspace", "home"):
        (place / name).mkdir(parents=True, exist_ok=True)
    given: dict[str, Any] = {
        "name": rollout.id,
        "argv": ("agent", "--now"),
        "env": {"POLICY_KEY": "the-policy-key"},
        "workspace": place / "workspace",
        "home": place / "home",
        "log_dir": place / "log",
        "wall_s": 30.0,
        "payload": "claude_code",
        "binds_ro": {"/opt/claude-code": place},
        "rollout": rollout,
        **fields,
    }
    return Spec(**given)


@asynccontextmanager
async def backend(
    script: Script, configured: Settings | None = None, silence_s: float = 90.0, **options: Any
) -> AsyncIterator[tuple[Cluster, Kubernetes]]:
    async with cluster(script, **options) as c:
        chosen = configured or settings()
        async with Kubernetes(chosen, c.aio_configuration(), silence_s) as sandbox:
            yield c, sandbox
        assert left(c) == [], "objects are left in the cluster"


def left(c: Cluster) -> list[str]:
    """Jobs, pods and Secrets that are there and not on their way out."""
    return [
        f"{kind}/{item['metadata']['name']}"
        for kind in ("jobs", "pods", "secrets")
        for item in c.objects.all(kind, "openforge")
        if "deletionTimestamp" not in item["metadata"]
    ]


class Sidecar:
    """A scripted pod's way to the collector."""

    def __init__(self, pod: Pod) -> None:
        command = next(c for c in pod.spec["containers"] if c["name"] == "sidecar")["command"]
        self._pod = pod
        self._config = json.loads(command[-1])

    @property
    def url(self) -> str:
        return f"{self._config['collector']}/pods/{self._config['name']}"

    async def key(self) -> str:
        """From the Secret; the kubelet waits for one that is not there yet."""
        while True:
            item = self._pod.objects.find("secrets", self._pod.namespace, self._config["name"])
            if item:
                return base64.b64decode(item["data"]["key"]).decode()
            await asyncio.sleep(0.01)

    async def fetch(self) -> dict[str, bytes]:
        headers = {"Authorization": f"Bearer {await self.key()}"}
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/input", headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            return content(await answer.read())

    async def send(self, body: bytes) -> int:
        headers = {"Authorization": f"Bearer {await self.key()}"}
        url = f"{self.url}/result"
        async with aiohttp.ClientSession() as session, session.put(url, headers=headers, data=body) as answer:
            return answer.status


def content(data: bytes) -> dict[str, bytes]:
    """The plain files of a tar."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isreg()}  # type: ignore[union-attr]


def result(said: str = "0", reason: str | None = None, files: Mapping[str, bytes] | None = None, **more: Any) -> bytes:
    """A result as the sidecar sends it."""
    record = {"reason": reason, "wall_s": 0.02, "said": said, "bytes": 0, **more}
    entries = {"record.json": json.dumps(record).encode(), "stdout": b"", "stderr": b"", **(files or {})}
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        folder = tarfile.TarInfo("workspace")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in entries.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


def delivers(
    code: int = 0,
    after: float = 0.02,
    body: bytes | None = None,
    seen: list[dict[str, bytes]] | None = None,
    end: Callable[[Pod], None] | None = None,
) -> Script:
    """Fetch, run for `after` seconds, leave a result, exit."""

    async def script(pod: Pod) -> None:
        await pod.schedule()
        sidecar = Sidecar(pod)
        files = await sidecar.fetch()
        if seen is not None:
            seen.append(files)
        pod.running()
        await asyncio.sleep(after)
        await sidecar.send(result(str(code)) if body is None else body)
        if end:
            end(pod)
        else:
            pod.exited(code, container="agent")
            pod.exited(0, container="sidecar")

    return script


def again(one: Spec) -> Spec:
    """The next try at the same slot."""
    assert one.rollout
    rollout = one.rollout.next_try()
    return replace(one, name=rollout.id, rollout=rollout)
