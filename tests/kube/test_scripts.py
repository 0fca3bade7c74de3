"""What becomes of pods, as the real client reads it."""

import asyncio
import json
from typing import Any

import pytest

from tests.kube import scripts
from tests.kube.cluster import Cluster
from tests.kube.cluster import cluster
from tests.kube.kubelet import ANNOTATION
from tests.kube.support import NAMESPACE
from tests.kube.support import Clients
from tests.kube.support import clients
from tests.kube.support import eventually
from tests.kube.support import make_job
from tests.kube.support import make_pod


async def pod_when(k: Clients, test: Any, **spec: Any) -> Any:
    """A new pod, once it is as `test` wants it."""
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one", **spec))

    async def look() -> Any:
        pod = await k.core.read_namespaced_pod("one", NAMESPACE)
        return pod if test(pod) else None

    return await eventually(look)


def over(pod: Any) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")


def waiting(pod: Any) -> Any:
    state = pod.status.container_statuses[0].state if pod.status.container_statuses else None
    return state.waiting if state else None


@pytest.mark.parametrize(
    ("script", "phase", "reason", "code"),
    [
        (scripts.exits(0), "Succeeded", "Completed", 0),
        (scripts.exits(3), "Failed", "Error", 3),
        (scripts.oom_killed(), "Failed", "OOMKilled", 137),
    ],
)
async def test_a_container_ends(c: Cluster, k: Clients, script: Any, phase: str, reason: str, code: int) -> None:
    c.script = script
    pod = await pod_when(k, over)
    ended = pod.status.container_statuses[0].state.terminated
    assert (pod.status.phase, ended.reason, ended.exit_code) == (phase, reason, code)
    assert ended.finished_at >= ended.started_at
    assert pod.spec.node_name == "node-1"
    assert next(row for row in pod.status.conditions if row.type == "Ready").status == "False"


@pytest.mark.parametrize(
    ("script", "reason", "words"),
    [
        (scripts.evicted(), "Evicted", "The node was low on resource: memory"),
        (scripts.deadline_exceeded(), "DeadlineExceeded", "longer than the specified deadline"),
    ],
)
async def test_the_kubelet_ends_a_pod(c: Cluster, k: Clients, script: Any, reason: str, words: str) -> None:
    c.script = script
    pod = await pod_when(k, over)
    assert (pod.status.phase, pod.status.reason) == ("Failed", reason)
    assert words in pod.status.message


async def test_the_pods_own_deadline(c: Cluster, k: Clients) -> None:
    c.script = scripts.exits(after=60)
    assert (await pod_when(k, over, activeDeadlineSeconds=1)).status.reason == "DeadlineExceeded"


async def test_a_lost_node(c: Cluster, k: Clients) -> None:
    """The pod stays, Terminating, until it is deleted by force."""
    c.script = scripts.node_lost()
    pod = await pod_when(k, lambda pod: pod.status.reason == "NodeLost" and pod.metadata.deletion_timestamp)
    assert pod.status.phase == "Running"
    assert "DeletionByTaintManager" in {row.reason for row in pod.status.conditions}
    await asyncio.sleep(0.1)
    assert c.objects.all("pods")
    await k.core.delete_namespaced_pod("one", NAMESPACE, grace_period_seconds=0)
    assert c.objects.all("pods") == []


async def test_preemption(c: Cluster, k: Clients) -> None:
    c.script = scripts.preempted(after=0.1)
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
    with c.objects.subscribe("pods") as changes:
        await eventually(lambda: not c.objects.all("pods"))
        seen = [changes.get_nowait() for _ in range(changes.qsize())]
    last = seen[-1].before
    assert "PreemptionByScheduler" in {row.get("reason") for row in last["status"]["conditions"]}
    assert last["status"]["phase"] == "Failed"
    assert "Preempted" in {event["reason"] for event in c.objects.all("events")}


@pytest.mark.parametrize("text", [scripts.MANIFEST_UNKNOWN, scripts.QPS_EXCEEDED, scripts.TOO_MANY_REQUESTS])
async def test_an_image_that_does_not_come(c: Cluster, k: Clients, text: str) -> None:
    c.script = scripts.cannot_pull(text)
    pod = await pod_when(k, lambda pod: waiting(pod) and waiting(pod).reason == "ErrImagePull")
    assert waiting(pod).message == text.format(image="registry.test/task:1")

    async def backing_off() -> bool:
        return waiting(await k.core.read_namespaced_pod("one", NAMESPACE)).reason == "ImagePullBackOff"

    await eventually(backing_off)


async def test_an_image_that_comes_in_the_end(c: Cluster, k: Clients) -> None:
    c.script = scripts.cannot_pull(scripts.QPS_EXCEEDED, times=2)
    assert (await pod_when(k, over)).status.phase == "Succeeded"


@pytest.mark.parametrize(
    ("script", "reason", "words"),
    [
        (scripts.invalid_image_name(), "InvalidImageName", "couldn't parse image name"),
        (scripts.create_container_config_error(), "CreateContainerConfigError", 'secret "missing" not found'),
        (scripts.waits(), "ContainerCreating", ""),
    ],
)
async def test_a_container_that_does_not_start(c: Cluster, k: Clients, script: Any, reason: str, words: str) -> None:
    c.script = script
    pod = await pod_when(k, lambda pod: waiting(pod) and waiting(pod).reason == reason)
    assert words in (waiting(pod).message or "")
    await asyncio.sleep(0.05)
    assert c.objects.get("pods", NAMESPACE, "one")["status"]["phase"] == "Pending"


async def test_a_pod_that_fits_nowhere(c: Cluster, k: Clients) -> None:
    c.script = scripts.unschedulable()
    pod = await pod_when(k, lambda pod: pod.status.conditions)
    (condition,) = pod.status.conditions
    assert (condition.type, condition.status, condition.reason) == ("PodScheduled", "False", "Unschedulable")
    assert pod.spec.node_name is None
    await k.core.delete_namespaced_pod("one", NAMESPACE)
    assert c.objects.all("pods") == []


async def test_an_init_container_fails(c: Cluster, k: Clients) -> None:
    c.script = scripts.init_exits(4)
    pod = await pod_when(k, over, initContainers=[{"name": "copy", "image": "harness"}])
    assert pod.status.phase == "Failed"
    assert pod.status.init_container_statuses[0].state.terminated.exit_code == 4
    assert waiting(pod) is not None


async def test_init_containers_are_done_when_the_pod_runs(k: Clients) -> None:
    pod = await pod_when(k, over, initContainers=[{"name": "copy", "image": "harness"}])
    assert pod.status.init_container_statuses[0].state.terminated.reason == "Completed"


async def test_gone_without_a_last_event(c: Cluster, k: Clients) -> None:
    """Neither pod nor Job is there any more, and no watch was told."""
    c.script = scripts.vanishes(after=0.1)
    await k.batch.create_namespaced_job(NAMESPACE, make_job("one"))
    with c.objects.subscribe("pods", "jobs") as changes:
        await eventually(lambda: not c.objects.all("pods") and not c.objects.all("jobs"))
        seen = [changes.get_nowait() for _ in range(changes.qsize())]
    assert all(change.after is not None for change in seen)
    assert (await k.core.list_namespaced_pod(NAMESPACE)).items == []


async def test_a_pods_own_script(c: Cluster, k: Clients) -> None:
    body = make_pod("one")
    body["metadata"]["annotations"] = {ANNOTATION: json.dumps({"name": "exits", "code": 5, "log": "hello\n"})}
    await k.core.create_namespaced_pod(NAMESPACE, body)
    await eventually(lambda: c.objects.get("pods", NAMESPACE, "one")["status"]["phase"] == "Failed")
    assert await k.core.read_namespaced_pod_log("one", NAMESPACE) == "hello\n"


async def test_nodes_have_so_much_room() -> None:
    async with cluster(scripts.exits(after=0.3), capacity=2, nodes=2) as c, clients(c) as k:
        for name in ("one", "two", "three"):
            await k.core.create_namespaced_pod(NAMESPACE, make_pod(name))
        await eventually(lambda: c.objects.all("events"))
        states = [pod["status"]["phase"] for pod in c.objects.all("pods")]
        assert sorted(states) == ["Pending", "Running", "Running"]
        assert {pod["spec"].get("nodeName") for pod in c.objects.all("pods")} == {"node-1", "node-2", None}
        await eventually(lambda: all(pod["status"]["phase"] == "Succeeded" for pod in c.objects.all("pods")))


async def test_a_script_that_is_wrong_fails_the_test() -> None:
    async def wrong(pod: Any) -> None:
        raise ValueError("a mistake in the test")

    with pytest.raises(ValueError, match="a mistake in the test"):
        async with cluster(wrong) as c, clients(c) as k:
            await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
            await eventually(lambda: c.kubelet.errors)
