"""The Job controller, seen with the real client."""

import asyncio
from typing import Any

import pytest

from tests.kube import scripts
from tests.kube.cluster import Cluster
from tests.kube.support import NAMESPACE
from tests.kube.support import Clients
from tests.kube.support import eventually
from tests.kube.support import make_job


async def ended(k: Clients, name: str = "one") -> Any:
    """The Job, once it has its last condition."""

    async def look() -> Any:
        job: Any = await k.batch.read_namespaced_job(name, NAMESPACE)
        kinds = {row.type for row in job.status.conditions or ()}
        return job if kinds & {"Complete", "Failed"} else None

    return await eventually(look)


async def start(k: Clients, **spec: Any) -> Any:
    return await k.batch.create_namespaced_job(NAMESPACE, make_job("one", **spec))


async def test_a_pod_is_tied_to_its_job(k: Clients) -> None:
    job = await start(k)
    await ended(k)
    (pod,) = (await k.core.list_namespaced_pod(NAMESPACE, label_selector="job-name=one")).items
    assert pod.metadata.labels["batch.kubernetes.io/controller-uid"] == job.metadata.uid
    assert pod.metadata.owner_references[0].uid == job.metadata.uid
    assert pod.metadata.name.startswith("one-")
    assert pod.metadata.finalizers in (None, [])
    assert pod.status.container_statuses[0].state.terminated.reason == "Completed"


async def test_complete(k: Clients) -> None:
    await start(k)
    status = (await ended(k)).status
    assert [row.type for row in status.conditions] == ["SuccessCriteriaMet", "Complete"]
    assert status.succeeded == 1
    assert status.completion_time is not None


@pytest.mark.parametrize("limit", [0, 2])
async def test_failed_pods_are_replaced_up_to_the_limit(c: Cluster, k: Clients, limit: int) -> None:
    c.jobs.backoff_s = 0.01
    c.script = scripts.exits(3)
    await start(k, backoffLimit=limit)
    job = await ended(k)
    assert [(row.type, row.reason) for row in job.status.conditions] == [
        ("FailureTarget", "BackoffLimitExceeded"),
        ("Failed", "BackoffLimitExceeded"),
    ]
    assert job.status.failed == limit + 1
    assert len((await k.core.list_namespaced_pod(NAMESPACE)).items) == limit + 1


async def test_a_second_pod_may_succeed(c: Cluster, k: Clients) -> None:
    c.script = scripts.in_turn(scripts.exits(1), scripts.exits(0))
    await start(k, backoffLimit=1)
    assert (await ended(k)).status.succeeded == 1


async def test_deadline(c: Cluster, k: Clients) -> None:
    c.script = scripts.exits(0, after=60)
    await start(k, activeDeadlineSeconds=1)
    job = await ended(k)
    assert job.status.conditions[-1].reason == "DeadlineExceeded"
    assert (await k.core.list_namespaced_pod(NAMESPACE)).items == []


async def test_time_to_live(c: Cluster, k: Clients) -> None:
    await start(k, ttlSecondsAfterFinished=0)
    await eventually(lambda: not c.objects.all("jobs") and not c.objects.all("pods"))


async def test_a_suspended_job_has_no_pod(c: Cluster, k: Clients) -> None:
    await start(k, suspend=True)
    await asyncio.sleep(0.1)
    assert c.objects.all("pods") == []
    await k.batch.patch_namespaced_job("one", NAMESPACE, {"spec": {"suspend": False}})
    assert (await ended(k)).status.succeeded == 1


async def test_a_pod_deleted_from_outside_counts_as_failed(c: Cluster, k: Clients) -> None:
    c.script = scripts.deleted()
    await start(k)
    assert (await ended(k)).status.failed == 1
    assert c.objects.all("pods") == []


async def test_a_pod_that_vanished_alone_is_made_again(c: Cluster, k: Clients) -> None:
    """The trap behind `backoffLimit: 0`: a pod that was never counted is replaced all the same."""
    c.script = scripts.in_turn(scripts.vanishes(with_job=False), scripts.exits(0))
    await start(k)
    await eventually(lambda: c.objects.all("jobs") and not c.objects.all("pods"))
    await k.batch.patch_namespaced_job("one", NAMESPACE, {"metadata": {"annotations": {"look": "again"}}})
    assert (await ended(k)).status.succeeded == 1


async def test_quota_keeps_the_pod_back(c: Cluster, k: Clients) -> None:
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    await k.core.create_namespaced_resource_quota(NAMESPACE, quota)
    await start(k)
    events = await eventually(lambda: c.objects.all("events"))
    assert events[0]["reason"] == "FailedCreate"
    assert "exceeded quota: few, requested: pods=1, used: pods=0, limited: pods=0" in events[0]["message"]
    await k.core.delete_namespaced_resource_quota("few", NAMESPACE)
    assert (await ended(k)).status.succeeded == 1
