"""kubectl against the test cluster; skipped where there is none."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.kube import scripts
from tests.kube.cluster import Cluster
from tests.kube.support import NAMESPACE
from tests.kube.support import eventually
from tests.kube.support import make_job
from tests.kube.support import make_pod

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


class Kubectl:
    def __init__(self, c: Cluster, folder: Path) -> None:
        self._folder, self._config = folder, c.kubeconfig(folder)

    async def __call__(self, *arguments: str, fails: bool = False) -> str:
        """What it printed; it must succeed, unless it must fail."""
        cache = f"--cache-dir={self._folder}"
        process = await asyncio.create_subprocess_exec(
            *("kubectl", f"--kubeconfig={self._config}", cache, *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed = (await process.communicate())[0].decode()
        assert (process.returncode != 0) == fails, printed
        return printed

    async def create(self, item: dict[str, object]) -> str:
        file = self._folder / "item.json"
        file.write_text(json.dumps(item))
        return await self("create", "--validate=false", "-f", str(file))


@pytest.fixture
def kubectl(c: Cluster, tmp_path: Path) -> Kubectl:
    return Kubectl(c, tmp_path)


async def test_create_wait_get_and_logs(c: Cluster, kubectl: Kubectl) -> None:
    c.script = scripts.exits(after=0.3, log="hello\n")
    assert "job.batch/one created" in await kubectl.create(make_job("one", {"run": "a"}))
    assert "condition met" in await kubectl("wait", "--for=condition=complete", "job/one", "--timeout=10s")
    assert "Complete" in await kubectl("get", "jobs,pods", "-l", "run=a", "-o", "yaml")
    assert "one-" in await kubectl("get", "pods")
    assert await kubectl("logs", "-l", "run=a") == "hello\n"
    assert "Completed" in await kubectl("describe", "pod", "-l", "run=a")


async def test_delete_takes_the_pods_along(c: Cluster, kubectl: Kubectl) -> None:
    c.script = scripts.exits(after=60)
    await kubectl.create(make_job("one", {"run": "a"}))
    await eventually(lambda: c.objects.all("pods"))
    await kubectl("delete", "jobs", "-l", "run=a", "--timeout=10s")
    await eventually(lambda: not c.objects.all("pods"))


async def test_apply_label_and_patch(c: Cluster, kubectl: Kubectl, tmp_path: Path) -> None:
    c.script = scripts.exits(after=60)
    file = tmp_path / "pod.json"
    for value in ("a", "b"):
        file.write_text(json.dumps(make_pod("one", {"run": value})))
        await kubectl("apply", "--validate=false", "-f", str(file))
    await kubectl("label", "pod", "one", "more=c")
    await kubectl("annotate", "pod", "one", "why=test")
    meta = c.objects.get("pods", NAMESPACE, "one")["metadata"]
    assert (meta["labels"], meta["annotations"]["why"]) == ({"run": "b", "more": "c"}, "test")


async def test_server_side_apply(c: Cluster, kubectl: Kubectl, tmp_path: Path) -> None:
    file = tmp_path / "secret.json"
    for value in ("a", "b"):
        item = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "one"}, "stringData": {"key": value}}
        file.write_text(json.dumps(item))
        await kubectl("apply", "--server-side", "--validate=false", "-f", str(file))
    assert c.objects.get("secrets", NAMESPACE, "one")["data"] == {"key": "Yg=="}


async def test_questions_about_the_cluster(kubectl: Kubectl) -> None:
    assert "Server Version: v1" in await kubectl("version")
    assert "batch/v1" in await kubectl("api-resources")
    assert "node-1" in await kubectl("get", "nodes")
    assert "NotFound" in await kubectl("get", "pod", "none", fails=True)
