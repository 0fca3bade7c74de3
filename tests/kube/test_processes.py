"""Pods as local processes and as containers: what runs, what it sees, and that nothing of it is left."""

import base64
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.kube import memory
from tests.kube.cluster import Cluster
from tests.kube.cluster import cluster
from tests.kube.kinds import KINDS
from tests.kube.kinds import real
from tests.kube.processes import MARK
from tests.kube.support import NAMESPACE
from tests.kube.support import Clients
from tests.kube.support import clients
from tests.kube.support import eventually
from tests.kube.support import make_pod

IMAGES: dict[str, dict[str, Path]] = {"none": {}}


@pytest.fixture(params=KINDS)
async def c(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with real(request.param, tmp_path, IMAGES) as script, cluster(script) as it:
        yield it


def shell(text: str, **container: Any) -> dict[str, Any]:
    return {"name": "main", "image": "none", "command": ["sh", "-c", text]} | container


async def start(k: Clients, *containers: dict[str, Any], **spec: Any) -> None:
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one", containers=list(containers), **spec))


async def ended(k: Clients) -> Any:
    async def look() -> Any:
        pod = await k.core.read_namespaced_pod("one", NAMESPACE)
        return pod if pod.status.phase in ("Succeeded", "Failed") else None

    return await eventually(look)


async def log(k: Clients, **options: Any) -> str:
    text: str = await k.core.read_namespaced_pod_log("one", NAMESPACE, **options)
    return text


def left(c: Cluster) -> list[str]:
    """The command lines of processes that belong to the cluster's pods."""
    uids = {pod["metadata"]["uid"] for pod in c.objects.all("pods")} | set(c.kubelet.seen)
    marks = [(p, (p.info["environ"] or {}).get(MARK, "")) for p in psutil.process_iter(["environ", "status"])]
    return [str(p.pid) for p, mark in marks if mark.split("/")[0] in uids and p.info["status"] != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (3, "Failed")])
async def test_exit_code_and_log(k: Clients, code: int, phase: str) -> None:
    await start(k, shell(f"echo out; echo err >&2; exit {code}"))
    pod = await ended(k)
    assert (pod.status.phase, pod.status.container_statuses[0].state.terminated.exit_code) == (phase, code)
    assert sorted((await log(k)).split()) == ["err", "out"]


# A container's first process cannot kill itself.
@pytest.mark.parametrize("c", ["processes"], indirect=True)
async def test_a_signal_is_128_and_its_number(k: Clients) -> None:
    await start(k, shell("kill -KILL $$$$"))
    assert (await ended(k)).status.container_statuses[0].state.terminated.exit_code == 137


@pytest.mark.skipif(not memory.enforced(), reason="control groups cannot be made here")
async def test_more_memory_than_its_limit(k: Clients) -> None:
    eat = [sys.executable, "-c", "bytearray(200 * 2**20); print('was allowed')"]
    limits = {"resources": {"limits": {"memory": "64Mi"}}}
    await start(k, shell("") | limits | {"command": eat})
    state = (await ended(k)).status.container_statuses[0].state.terminated
    assert (state.exit_code, state.reason) == (137, "OOMKilled"), await log(k)
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{memory.PARENT}/{(await ended(k)).metadata.uid}*"))


async def test_environment_and_expansion(k: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_HOST", "leaks")
    await k.core.create_namespaced_secret(NAMESPACE, {"metadata": {"name": "key"}, "stringData": {"key": "s3cret"}})
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)2 $(NONE) $$(A)"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "key"}}},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    await start(k, shell('echo "$B|$KEY|$POD|$OF_THE_HOST|$1"', env=env, args=["sh", "$(A)"]))
    await ended(k)
    assert (await log(k)).strip() == "12 $(NONE) $(A)|s3cret|one||1"


async def test_volumes_init_containers_and_paths(k: Clients) -> None:
    """An init container brings a file that the main one runs; a Secret is a folder of files."""
    body = {"metadata": {"name": "key"}, "data": {"key": base64.b64encode(b"\xff\x00").decode()}}
    await k.core.create_namespaced_secret(NAMESPACE, body)
    mounts = [{"name": "tools", "mountPath": "/opt/tools"}, {"name": "key", "mountPath": "/etc/key"}]
    text = "printf 'wc -c < $1/key' > /opt/tools/run"
    await start(
        k,
        shell(
            "sh /opt/tools/run $DIR; basename $PWD",
            env=[{"name": "DIR", "value": "/etc/key"}],
            volumeMounts=mounts,
            workingDir="/opt/tools",
        ),
        initContainers=[shell(text, name="copy", volumeMounts=mounts)],
        volumes=[
            {"name": "tools", "emptyDir": {}},
            {"name": "key", "secret": {"secretName": "key", "defaultMode": 0o400}},
        ],
    )
    pod = await ended(k)
    assert pod.status.phase == "Succeeded", await log(k)
    assert pod.status.init_container_statuses[0].state.terminated.exit_code == 0
    assert (await log(k)).split() == ["2", "tools"]


async def test_an_init_container_that_fails_ends_the_pod(k: Clients) -> None:
    await start(k, shell("echo never"), initContainers=[shell("echo why; exit 4", name="copy")])
    pod = await ended(k)
    assert pod.status.phase == "Failed"
    assert pod.status.init_container_statuses[0].state.terminated.exit_code == 4
    assert await log(k, container="copy") == "why\n"


async def test_a_secret_that_comes_late(c: Cluster, k: Clients) -> None:
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "late", "key": "key"}}}]
    await start(k, shell("echo $KEY", env=env))

    def waits() -> bool:
        status = c.objects.get("pods", NAMESPACE, "one")["status"].get("containerStatuses")
        return bool(status) and status[0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"

    await eventually(waits)
    await k.core.create_namespaced_secret(NAMESPACE, {"metadata": {"name": "late"}, "stringData": {"key": "here"}})
    await ended(k)
    assert await log(k) == "here\n"


@pytest.mark.parametrize("c", ["processes", "containers"], indirect=True)
@pytest.mark.parametrize("limits", [{}, {"memory": "64Mi"}])
async def test_a_command_that_is_not_there(k: Clients, limits: dict[str, str]) -> None:
    await start(k, shell("", resources={"limits": limits}) | {"command": ["/no/such/command"]})
    state = (await ended(k)).status.container_statuses[0].state.terminated
    assert (state.exit_code, state.reason) == (128, "StartError")
    assert "/no/such/command" in state.message


async def test_a_deadline_kills_the_whole_tree(c: Cluster, k: Clients) -> None:
    await start(k, shell("setsid sleep 100 & sleep 100"), activeDeadlineSeconds=1, terminationGracePeriodSeconds=1)
    pod = await ended(k)
    assert pod.status.reason == "DeadlineExceeded"
    await eventually(lambda: not left(c))


@pytest.mark.parametrize("limits", [{}, {"memory": "64Mi"}])
@pytest.mark.parametrize("output", ["", ">/dev/null 2>&1"])
async def test_a_daemon_does_not_outlive_its_container(
    c: Cluster, k: Clients, output: str, limits: dict[str, str]
) -> None:
    await start(k, shell(f"setsid sleep 100 {output} & exit 0", resources={"limits": limits}))
    await ended(k)
    await eventually(lambda: not left(c))


@pytest.mark.parametrize(
    ("text", "code"), [("trap 'exit 0' TERM; echo up; sleep 100 & wait", 0), ("trap '' TERM; echo up; sleep 100", 137)]
)
async def test_a_deleted_pod_may_end_by_itself_within_its_grace(c: Cluster, k: Clients, text: str, code: int) -> None:
    await start(k, shell(text))

    def up() -> bool:
        return b"up" in b"".join(line for _, line in c.logs.of(next(iter(c.kubelet.seen)), "main").lines)

    await eventually(lambda: c.kubelet.seen and up())
    with c.objects.subscribe("pods") as changes:
        await k.core.delete_namespaced_pod("one", NAMESPACE, grace_period_seconds=1)
        await eventually(lambda: not c.objects.all("pods"))
        last = [changes.get_nowait() for _ in range(changes.qsize())][-1].before
    assert last["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == code
    assert left(c) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_outlives_the_cluster(tmp_path: Path, kind: str) -> None:
    async with real(kind, tmp_path, IMAGES) as script, cluster(script) as c, clients(c) as k:
        await start(k, shell("trap '' TERM; sleep 100"))
        await eventually(lambda: left(c))
    assert left(c) == []
