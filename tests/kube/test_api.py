"""What the API server answers, seen with the real clients."""

import asyncio
import base64
from typing import Any

import httpx
import pytest
from kubernetes import client as blocking
from kubernetes.aio.client import ApiException

from tests.kube import patches
from tests.kube import scripts
from tests.kube.cluster import Cluster
from tests.kube.support import NAMESPACE
from tests.kube.support import Clients
from tests.kube.support import eventually
from tests.kube.support import make_job
from tests.kube.support import make_pod


def status(raised: "pytest.ExceptionInfo[ApiException]") -> tuple[int, str]:
    body = httpx.Response(200, content=raised.value.body).json()
    assert body["kind"] == "Status"
    assert body["code"] == raised.value.status
    return raised.value.status, body["reason"]


async def secret(k: Clients, name: str, labels: dict[str, str] | None = None, **more: Any) -> Any:
    body = {"metadata": {"name": name, "labels": labels or {}} | more, "stringData": {"key": "value"}}
    return await k.core.create_namespaced_secret(NAMESPACE, body)


async def test_the_blocking_client_from_a_thread(c: Cluster) -> None:
    with blocking.ApiClient(c.configuration()) as api:
        core: Any = blocking.CoreV1Api(api)
        batch: Any = blocking.BatchV1Api(api)
        await asyncio.to_thread(batch.create_namespaced_job, NAMESPACE, make_job("one"))

        def phases() -> list[Any]:
            return [pod.status.phase for pod in core.list_namespaced_pod(NAMESPACE).items]

        async def succeeded() -> bool:
            return await asyncio.to_thread(phases) == ["Succeeded"]

        await eventually(succeeded)


async def test_what_is_created_is_what_is_read(k: Clients) -> None:
    made = await secret(k, "one", {"a": "b"})
    read = await k.core.read_namespaced_secret("one", NAMESPACE)
    assert read == made
    assert base64.b64decode(read.data["key"]) == b"value"
    assert read.metadata.uid
    assert read.metadata.creation_timestamp.tzinfo is not None


async def test_names_are_made_up_on_request(k: Clients) -> None:
    body = {"metadata": {"generateName": "some-"}}
    names = {(await k.core.create_namespaced_secret(NAMESPACE, body)).metadata.name for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("some-") for name in names)


async def test_errors_are_status_objects(k: Clients) -> None:
    with pytest.raises(ApiException) as missing:
        await k.core.read_namespaced_pod("none", NAMESPACE)
    assert status(missing) == (404, "NotFound")
    await secret(k, "one")
    with pytest.raises(ApiException) as twice:
        await secret(k, "one")
    assert status(twice) == (409, "AlreadyExists")
    with pytest.raises(ApiException) as selector:
        await k.core.list_namespaced_pod(NAMESPACE, field_selector="spec.image=x")
    assert status(selector) == (400, "BadRequest")


@pytest.mark.parametrize(
    "body",
    [
        make_job("Upper"),
        make_job("x" * 64),
        make_job("one", {"run": "not/a/value"}),
        make_job("one", pod={"restartPolicy": "Always"}),
        make_job("one", pod={"containers": []}),
        make_job("one", pod={"containers": [{"name": "a"}]}),
        make_job(
            "one",
            pod={"containers": [{"name": "a", "image": "b", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
        ),
    ],
)
async def test_an_invalid_job_is_refused(k: Clients, body: Any) -> None:
    with pytest.raises(ApiException) as raised:
        await k.batch.create_namespaced_job(NAMESPACE, body)
    assert status(raised) == (422, "Invalid")


async def test_nothing_is_made_in_a_namespace_that_is_not_there(k: Clients) -> None:
    with pytest.raises(ApiException) as raised:
        await k.batch.create_namespaced_job("elsewhere", make_job("one"))
    assert status(raised) == (404, "NotFound")
    assert "elsewhere" in str(raised.value.body)


async def test_a_dry_run_checks_and_stores_nothing(c: Cluster, k: Clients) -> None:
    await k.batch.create_namespaced_job(NAMESPACE, make_job("one"), dry_run="All")
    assert c.objects.all("jobs") == []
    with pytest.raises(ApiException) as raised:
        await k.batch.create_namespaced_job(NAMESPACE, make_job("Upper"), dry_run="All")
    assert status(raised) == (422, "Invalid")
    await k.batch.create_namespaced_job(NAMESPACE, make_job("one"))
    with pytest.raises(ApiException) as kept:
        await k.batch.delete_namespaced_job("one", NAMESPACE, dry_run="All")
    assert status(kept) == (400, "BadRequest")
    assert len(c.objects.all("jobs")) == 1


async def test_a_write_on_an_old_version_conflicts(k: Clients) -> None:
    old = await secret(k, "one")
    await k.core.patch_namespaced_secret("one", NAMESPACE, {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(ApiException) as raised:
        await k.core.replace_namespaced_secret("one", NAMESPACE, old)
    assert status(raised) == (409, "Conflict")


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        (patches.MERGE, {"metadata": {"labels": {"a": None, "b": "2"}}}),
        (patches.STRATEGIC, {"metadata": {"labels": {"a": None, "b": "2"}}}),
        (
            patches.JSON,
            [{"op": "remove", "path": "/metadata/labels/a"}, {"op": "add", "path": "/metadata/labels/b", "value": "2"}],
        ),
    ],
)
async def test_patch(c: Cluster, k: Clients, kind: str, patch: Any) -> None:
    uid = (await secret(k, "one", {"a": "1", "c": "3"})).metadata.uid
    async with httpx.AsyncClient(base_url=c.url) as http:
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets/one"
        answer = await http.patch(path, json=patch, headers={"content-type": kind})
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["labels"] == {"b": "2", "c": "3"}
    assert answer.json()["metadata"]["uid"] == uid


async def test_status_is_written_apart(c: Cluster, k: Clients) -> None:
    await k.batch.create_namespaced_job(NAMESPACE, make_job("one", suspend=True))
    body = {"status": {"ready": 7}, "spec": {"suspend": False}}
    await k.batch.patch_namespaced_job("one", NAMESPACE, {"status": body["status"]})
    assert "ready" not in c.objects.get("jobs", NAMESPACE, "one")["status"]
    await k.batch.patch_namespaced_job_status("one", NAMESPACE, body)
    job = c.objects.get("jobs", NAMESPACE, "one")
    assert (job["status"]["ready"], job["spec"]["suspend"]) == (7, True)


async def test_pages(c: Cluster, k: Clients) -> None:
    for number in range(5):
        await secret(k, f"s{number}")
    first = await k.core.list_namespaced_secret(NAMESPACE, limit=2)
    await secret(k, "late")
    assert first.metadata.remaining_item_count == 3
    second = await k.core.list_namespaced_secret(NAMESPACE, limit=2, _continue=first.metadata._continue)
    third = await k.core.list_namespaced_secret(NAMESPACE, limit=2, _continue=second.metadata._continue)
    names = [item.metadata.name for page in (first, second, third) for item in page.items]
    assert names == ["s0", "s1", "s2", "s3", "s4"]
    assert not third.metadata._continue
    assert third.metadata.resource_version == first.metadata.resource_version


async def test_a_page_of_a_forgotten_version_is_gone(c: Cluster, k: Clients) -> None:
    for number in range(3):
        await secret(k, f"s{number}")
    first = await k.core.list_namespaced_secret(NAMESPACE, limit=2)
    await secret(k, "late")
    c.objects.compact()
    with pytest.raises(ApiException) as raised:
        await k.core.list_namespaced_secret(NAMESPACE, limit=2, _continue=first.metadata._continue)
    assert status(raised) == (410, "Expired")


async def test_delete_collection_by_label(k: Clients) -> None:
    for number in range(3):
        await secret(k, f"s{number}", {"run": "a" if number else "b"})
    await k.core.delete_collection_namespaced_secret(NAMESPACE, label_selector="run=a")
    assert [item.metadata.name for item in (await k.core.list_namespaced_secret(NAMESPACE)).items] == ["s0"]


async def test_preconditions_of_a_delete(k: Clients) -> None:
    uid = (await secret(k, "one")).metadata.uid
    with pytest.raises(ApiException) as raised:
        await k.core.delete_namespaced_secret("one", NAMESPACE, body={"preconditions": {"uid": "another"}})
    assert status(raised) == (409, "Conflict")
    await k.core.delete_namespaced_secret("one", NAMESPACE, body={"preconditions": {"uid": uid}})


async def test_what_a_job_owns_goes_with_it(c: Cluster, k: Clients) -> None:
    c.script = scripts.exits(after=60)
    job = await k.batch.create_namespaced_job(NAMESPACE, make_job("one"))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "one", "uid": job.metadata.uid}
    await secret(k, "of-one", ownerReferences=[owner])
    await secret(k, "of-none")
    await eventually(lambda: c.objects.all("pods"))
    await k.batch.delete_namespaced_job("one", NAMESPACE, propagation_policy="Background")
    await eventually(lambda: not c.objects.all("pods"))
    assert [item["metadata"]["name"] for item in c.objects.all("secrets")] == ["of-none"]


async def test_a_job_deleted_without_a_word_leaves_its_pods(c: Cluster, k: Clients) -> None:
    """As the real server does; kubectl and careful clients send a propagation policy."""
    c.script = scripts.exits(after=60)
    await k.batch.create_namespaced_job(NAMESPACE, make_job("one"))
    await eventually(lambda: [p for p in c.objects.all("pods") if p["status"]["phase"] == "Running"])
    await k.batch.delete_namespaced_job("one", NAMESPACE)
    await asyncio.sleep(0.1)
    assert c.objects.all("jobs") == []
    assert [pod["status"]["phase"] for pod in c.objects.all("pods")] == ["Running"]


async def test_a_foreground_delete_waits_for_the_pods(c: Cluster, k: Clients) -> None:
    c.script = scripts.node_lost(after=0)
    await k.batch.create_namespaced_job(NAMESPACE, make_job("one"))
    await eventually(lambda: [p for p in c.objects.all("pods") if p["status"].get("reason") == "NodeLost"])
    await k.batch.delete_namespaced_job("one", NAMESPACE, propagation_policy="Foreground")
    job = await k.batch.read_namespaced_job("one", NAMESPACE)
    assert job.metadata.deletion_timestamp is not None
    (pod,) = c.objects.all("pods")
    await k.core.delete_namespaced_pod(pod["metadata"]["name"], NAMESPACE, grace_period_seconds=0)
    await eventually(lambda: not c.objects.all("pods") and not c.objects.all("jobs"))


async def test_a_foreground_delete_of_a_job_that_runs(c: Cluster, k: Clients) -> None:
    c.script = scripts.exits(after=60)
    await k.batch.create_namespaced_job(NAMESPACE, make_job("one"))
    await eventually(lambda: [p for p in c.objects.all("pods") if p["status"]["phase"] == "Running"])
    await k.batch.delete_namespaced_job("one", NAMESPACE, propagation_policy="Foreground")
    await eventually(lambda: not c.objects.all("pods") and not c.objects.all("jobs"))


async def test_a_running_pod_ends_within_its_grace(c: Cluster, k: Clients) -> None:
    c.script = scripts.exits(after=60)
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
    await eventually(lambda: c.objects.get("pods", NAMESPACE, "one")["status"]["phase"] == "Running")
    left = await k.core.delete_namespaced_pod("one", NAMESPACE, grace_period_seconds=7)
    assert left.metadata.deletion_grace_period_seconds == 7
    await eventually(lambda: not c.objects.all("pods"))


async def test_eviction(c: Cluster, k: Clients) -> None:
    c.script = scripts.exits(after=60)
    await k.batch.create_namespaced_job(NAMESPACE, make_job("one"))
    (pod,) = await eventually(lambda: [p for p in c.objects.all("pods") if p["status"]["phase"] == "Running"])
    name = pod["metadata"]["name"]
    body = {"metadata": {"name": name, "namespace": NAMESPACE}}
    await k.core.create_namespaced_pod_eviction(name, NAMESPACE, body)
    await eventually(lambda: not c.objects.all("pods"))
    await eventually(lambda: c.objects.get("jobs", NAMESPACE, "one")["status"].get("failed") == 1)


async def test_a_quota_is_enforced_and_counted(c: Cluster, k: Clients) -> None:
    hard = {"count/jobs.batch": "1", "pods": "5", "limits.memory": "1Gi"}
    await k.core.create_namespaced_resource_quota(NAMESPACE, {"metadata": {"name": "few"}, "spec": {"hard": hard}})
    await k.batch.create_namespaced_job(NAMESPACE, make_job("one"))
    with pytest.raises(ApiException) as raised:
        await k.batch.create_namespaced_job(NAMESPACE, make_job("two"))
    assert status(raised) == (403, "Forbidden")
    assert "exceeded quota: few, requested: count/jobs.batch=1, used: count/jobs.batch=1" in str(raised.value.body)
    big = [{"name": "a", "image": "b", "resources": {"limits": {"memory": "2Gi"}}}]
    with pytest.raises(ApiException) as much:
        await k.core.create_namespaced_pod(NAMESPACE, make_pod("big", containers=big))
    assert "limited: limits.memory=1Gi" in str(much.value.body)
    used = (await k.core.read_namespaced_resource_quota("few", NAMESPACE)).status.used
    assert used["count/jobs.batch"] == "1"


async def test_access_is_refused_and_reviewed(c: Cluster, k: Clients) -> None:
    c.api.denied.add(("create", "secrets"))
    with pytest.raises(ApiException) as raised:
        await secret(k, "one")
    assert status(raised) == (403, "Forbidden")
    async with httpx.AsyncClient(base_url=c.url) as http:
        for verb, allowed in (("create", False), ("get", True)):
            asked = {"verb": verb, "resource": "secrets", "namespace": NAMESPACE}
            body = {"spec": {"resourceAttributes": asked}}
            answer = await http.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json=body)
            assert answer.json()["status"]["allowed"] is allowed


async def test_an_unknown_path_is_a_status_too(c: Cluster) -> None:
    async with httpx.AsyncClient(base_url=c.url) as http:
        answer = await http.get("/apis/apps/v1/deployments")
        assert (answer.status_code, answer.json()["kind"]) == (404, "Status")
        assert (await http.get("/readyz")).text == "ok"
        assert (await http.get("/version")).json()["major"] == "1"
