"""Volumes where a container mounts them, for the files that it reads too."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kube.cluster import Cluster
from tests.kube.cluster import cluster
from tests.kube.mounted import Mounted
from tests.kube.objects import Object
from tests.kube.support import NAMESPACE
from tests.kube.support import Clients
from tests.kube.support import eventually
from tests.kube.support import make_pod

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.fixture
async def c(tmp_path: Path) -> AsyncIterator[Cluster]:
    payload = tmp_path / "payload"
    payload.mkdir()
    (payload / "harness").write_text(
        "#!/bin/sh\ncat /workspace/task\necho $HOME; touch /workspace/done /tmp/mine ~/own\n"
    )
    (payload / "harness").chmod(0o755)
    async with cluster(Mounted(tmp_path / "pods", {"harness:1": {"/payload": payload}})) as it:
        yield it


async def test_a_payload_is_copied_in_and_finds_its_paths(c: Cluster, k: Clients, tmp_path: Path) -> None:
    volumes: list[Object] = [{"name": name, "emptyDir": {}} for name in ("harness", "workspace", "tmp")]
    places = {"harness": "/opt/harness", "workspace": "/workspace", "tmp": "/tmp"}
    mounts = [{"name": name, "mountPath": path} for name, path in places.items()]
    copy = "cp /payload/harness /opt/harness/ && echo the task > /workspace/task"
    init = {"name": "copy", "image": "harness:1", "command": ["sh", "-c", copy], "volumeMounts": mounts}
    main = {"name": "main", "image": "task:1", "command": ["/opt/harness/harness"], "workingDir": "/workspace"}
    body = make_pod("one", initContainers=[init], containers=[main | {"volumeMounts": mounts}], volumes=volumes)
    await k.core.create_namespaced_pod(NAMESPACE, body)
    await eventually(lambda: c.objects.get("pods", NAMESPACE, "one")["status"]["phase"] in ("Succeeded", "Failed"))
    assert (await k.core.read_namespaced_pod_log("one", NAMESPACE)).splitlines() == ["the task", "/home/pod"]
    (pod,) = (tmp_path / "pods").iterdir()
    written = {str(file.relative_to(pod)) for file in pod.rglob("*") if file.is_file()}
    assert written == {
        "home/own",
        "volumes/harness/harness",
        "volumes/workspace/task",
        "volumes/workspace/done",
        "volumes/tmp/mine",
    }
    assert not any(Path(path).exists() for path in ("/opt/harness", "/workspace", "/tmp/mine", "/home/pod"))
