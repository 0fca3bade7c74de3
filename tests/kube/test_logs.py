"""Container logs, as the real client reads them."""

import asyncio
from typing import Any

import httpx
import pytest
from kubernetes.aio.client import ApiException

from tests.kube import logs
from tests.kube import scripts
from tests.kube.cluster import Cluster
from tests.kube.pods import Pod
from tests.kube.support import NAMESPACE
from tests.kube.support import Clients
from tests.kube.support import eventually
from tests.kube.support import make_pod

PATH = f"/api/v1/namespaces/{NAMESPACE}/pods/one/log"


async def run(c: Cluster, k: Clients, text: str) -> None:
    c.script = scripts.exits(log=text)
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
    await eventually(lambda: c.objects.get("pods", NAMESPACE, "one")["status"]["phase"] == "Succeeded")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "1\n2\n3\n"),
        ({"tail_lines": 2}, "2\n3\n"),
        ({"tail_lines": 9}, "1\n2\n3\n"),
        ({"limit_bytes": 3}, "1\n2"),
        ({"follow": True}, "1\n2\n3\n"),
        ({"container": "main"}, "1\n2\n3\n"),
        ({"since_seconds": 60}, "1\n2\n3\n"),
    ],
)
async def test_what_is_asked_for(c: Cluster, k: Clients, options: dict[str, Any], expected: str) -> None:
    await run(c, k, "1\n2\n3\n")
    assert await k.core.read_namespaced_pod_log("one", NAMESPACE, **options) == expected


async def test_timestamps(c: Cluster, k: Clients) -> None:
    await run(c, k, "hello\n")
    text = await k.core.read_namespaced_pod_log("one", NAMESPACE, timestamps=True)
    assert text[10] == "T"
    assert text.endswith("Z hello\n")


async def test_a_container_that_waits_has_no_log(c: Cluster, k: Clients) -> None:
    c.script = scripts.waits()
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
    await eventually(lambda: c.objects.get("pods", NAMESPACE, "one")["status"].get("containerStatuses"))
    with pytest.raises(ApiException) as raised:
        await k.core.read_namespaced_pod_log("one", NAMESPACE)
    assert raised.value.status == 400
    assert "waiting to start: ContainerCreating" in str(raised.value.body)


async def test_following(c: Cluster, k: Clients) -> None:
    """Lines come as they are written, and the stream ends with the container."""
    go = asyncio.Event()

    async def script(pod: Pod) -> None:
        await pod.schedule()
        pod.running()
        pod.log("first\n")
        await go.wait()
        pod.log("last\n")
        pod.exited(0)

    c.script = script
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
    await eventually(lambda: c.objects.get("pods", NAMESPACE, "one")["status"]["phase"] == "Running")
    async with (
        httpx.AsyncClient(base_url=c.url) as http,
        http.stream("GET", PATH, params={"follow": "true"}) as answer,
    ):
        lines = answer.aiter_lines()
        assert await anext(lines) == "first"
        go.set()
        assert [line async for line in lines] == ["last"]


async def test_rotation_loses_what_was_written_before(c: Cluster, k: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the newest file can be asked for: a result in a log is a result that may be lost."""
    monkeypatch.setattr(logs, "ROTATE_AT", 1000)
    await run(c, k, "result\n" + "x" * 99 + "\n" + ("y" * 99 + "\n") * 10)
    text = await k.core.read_namespaced_pod_log("one", NAMESPACE)
    assert "result" not in text
    assert 0 < len(text) <= 1000


async def test_a_follow_goes_on_in_the_new_file(c: Cluster, k: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "ROTATE_AT", 1000)

    async def script(pod: Pod) -> None:
        await pod.schedule()
        pod.running()
        for number in range(100):
            pod.log(f"{number:0>99}\n")
            await asyncio.sleep(0.001)
        pod.exited(0)

    c.script = script
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
    await eventually(lambda: c.objects.get("pods", NAMESPACE, "one")["status"]["phase"] == "Running")
    text = await k.core.read_namespaced_pod_log("one", NAMESPACE, follow=True)
    assert text.endswith(f"{99:0>99}\n")
    numbers = [int(line) for line in text.splitlines()]
    assert numbers == sorted(set(numbers))
