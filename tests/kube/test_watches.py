"""Watches, with the real clients: what a stream brings, and how it ends."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from kubernetes import client as blocking
from kubernetes import watch
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import ProtocolError

from tests.kube import scripts
from tests.kube.cluster import Cluster
from tests.kube.faults import WatchEnd
from tests.kube.support import NAMESPACE
from tests.kube.support import Clients
from tests.kube.support import make_pod

PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"


@asynccontextmanager
async def stream(c: Cluster, **query: Any) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The events of a watch as they are on the wire."""
    parameters: dict[str, Any] = {"watch": "1", "timeoutSeconds": 2} | query
    async with (
        httpx.AsyncClient(base_url=c.url, timeout=httpx.Timeout(5, read=2)) as http,
        http.stream("GET", PATH, params=parameters) as answer,
    ):
        yield (json.loads(line) async for line in answer.aiter_lines())


def brief(event: dict[str, Any]) -> tuple[str, str]:
    return event["type"], event["object"]["metadata"]["name"]


@pytest.fixture
def idle(c: Cluster) -> Iterator[Cluster]:
    """Pods that nothing happens to, so that every event is the test's own."""
    c.script = lambda pod: asyncio.sleep(0)
    yield c


async def test_what_is_there_and_then_what_changes(idle: Cluster, k: Clients) -> None:
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
    async with stream(idle) as events:
        assert brief(await anext(events)) == ("ADDED", "one")
        await k.core.patch_namespaced_pod("one", NAMESPACE, {"metadata": {"labels": {"a": "b"}}})
        changed = await anext(events)
        assert (brief(changed), changed["object"]["metadata"]["labels"]) == (("MODIFIED", "one"), {"a": "b"})
        await k.core.delete_namespaced_pod("one", NAMESPACE)
        gone = await anext(events)
        assert brief(gone) == ("DELETED", "one")
        version = int(changed["object"]["metadata"]["resourceVersion"])
        assert int(gone["object"]["metadata"]["resourceVersion"]) > version


async def test_from_a_version_on(idle: Cluster, k: Clients) -> None:
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
    listed = await k.core.list_namespaced_pod(NAMESPACE)
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("two"))
    async with stream(idle, resourceVersion=listed.metadata.resource_version) as events:
        assert brief(await anext(events)) == ("ADDED", "two")


async def test_an_object_enters_and_leaves_a_selection(idle: Cluster, k: Clients) -> None:
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
    async with stream(idle, labelSelector="run=a") as events:
        for value in ("a", "b"):
            await k.core.patch_namespaced_pod("one", NAMESPACE, {"metadata": {"labels": {"run": value}}})
        assert brief(await anext(events)) == ("ADDED", "one")
        assert brief(await anext(events)) == ("DELETED", "one")


async def test_other_namespaces_are_not_seen(idle: Cluster, k: Clients) -> None:
    async with stream(idle) as events:
        await k.core.create_namespaced_pod("default", make_pod("other"))
        await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
        assert brief(await anext(events)) == ("ADDED", "one")


async def test_it_closes_in_time_with_a_bookmark(idle: Cluster, k: Clients) -> None:
    await k.core.create_namespaced_secret(NAMESPACE, {"metadata": {"name": "moves-the-version"}})
    async with stream(idle, timeoutSeconds=1, allowWatchBookmarks="true") as events:
        (bookmark,) = [event async for event in events]
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["metadata"]["resourceVersion"] == str(idle.objects.version)


async def test_initial_events_end_with_a_marked_bookmark(idle: Cluster, k: Clients) -> None:
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
    async with stream(idle, sendInitialEvents="true", allowWatchBookmarks="true") as events:
        assert brief(await anext(events)) == ("ADDED", "one")
        end = await anext(events)
    assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_forgotten_version_is_an_error_event(idle: Cluster, k: Clients) -> None:
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
    idle.objects.compact()
    async with stream(idle, resourceVersion="1") as events:
        (error,) = [event async for event in events]
    assert (error["type"], error["object"]["code"], error["object"]["reason"]) == ("ERROR", 410, "Expired")


def follow(c: Cluster, **options: Any) -> list[str]:
    """With the blocking client, which is to be called in a thread."""
    with blocking.ApiClient(c.configuration()) as api:
        found = watch.Watch().stream(blocking.CoreV1Api(api).list_namespaced_pod, NAMESPACE, **options)
        return [f"{event['type']} {event['object'].metadata.name}" for event in found]


async def test_the_blocking_client_follows(c: Cluster, k: Clients) -> None:
    c.script = scripts.exits(after=0)
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
    seen = await asyncio.to_thread(follow, c, timeout_seconds=1)
    assert seen[0] == "ADDED one"
    assert set(seen[1:]) <= {"MODIFIED one"}


async def test_a_410_reaches_the_blocking_client(c: Cluster) -> None:
    c.faults.watches += [WatchEnd(0, "expired"), WatchEnd(0, "expired")]
    with pytest.raises(ApiException) as raised:
        await asyncio.to_thread(follow, c, timeout_seconds=1)
    assert raised.value.status == 410


async def test_a_cut_watch_breaks_off(idle: Cluster, k: Clients) -> None:
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
    idle.faults.watches.append(WatchEnd(1, "cut"))
    with pytest.raises(ProtocolError):
        await asyncio.to_thread(follow, idle, timeout_seconds=1)


async def test_a_silent_watch_stays_open_and_brings_nothing(idle: Cluster, k: Clients) -> None:
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
    idle.faults.watches.append(WatchEnd(1, "silent"))
    async with stream(idle, timeoutSeconds=1) as events:
        assert brief(await anext(events)) == ("ADDED", "one")
        await k.core.create_namespaced_pod(NAMESPACE, make_pod("two"))
        with pytest.raises(httpx.ReadTimeout):
            await anext(events)


async def test_a_planned_end_holds_for_one_watch(idle: Cluster, k: Clients) -> None:
    await k.core.create_namespaced_pod(NAMESPACE, make_pod("one"))
    idle.faults.watches += [WatchEnd(1, "closed"), WatchEnd(0, "expired")]
    async with stream(idle) as events:
        assert [brief(event) async for event in events] == [("ADDED", "one")]
    async with stream(idle) as events:
        assert [event["type"] async for event in events] == ["ERROR"]
    async with stream(idle, timeoutSeconds=1) as events:
        assert [brief(event) async for event in events] == [("ADDED", "one")]


@pytest.mark.parametrize("how", ["cut", "closed", "expired"])
async def test_open_watches_can_be_ended(idle: Cluster, how: Any) -> None:
    async with stream(idle) as events:
        assert len(idle.watches) == 1
        idle.watches.end(how)
        if how == "cut":
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(events)
        else:
            assert [event["type"] async for event in events] == (["ERROR"] if how == "expired" else [])
    assert len(idle.watches) == 0


@pytest.mark.parametrize("seed", range(3))
async def test_a_watch_with_a_selector_keeps_a_list_true(idle: Cluster, k: Clients, seed: int) -> None:
    """Whatever happens, and wherever the watch breaks off: what it brought is what a list says."""
    numbers = random.Random(seed)
    known: dict[str, Any] = {}
    selector = "run=a"
    objects = idle.objects
    version = str(objects.version)
    for _ in range(4):
        for _ in range(10):
            name, value = numbers.choice("pqr"), numbers.choice("ab")
            if objects.find("pods", NAMESPACE, name) is None:
                await k.core.create_namespaced_pod(NAMESPACE, make_pod(name, {"run": value}))
            elif numbers.random() < 0.5:
                await k.core.patch_namespaced_pod(name, NAMESPACE, {"metadata": {"labels": {"run": value}}})
            else:
                await k.core.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=0)
        target = await k.core.list_namespaced_pod(NAMESPACE, label_selector=selector)
        query = {"labelSelector": selector, "resourceVersion": version, "allowWatchBookmarks": "true"}
        async with stream(idle, timeoutSeconds=0.1, **query) as events:
            async for event in events:
                meta = event["object"]["metadata"]
                version = meta["resourceVersion"]
                if event["type"] == "DELETED":
                    del known[meta["name"]]
                elif event["type"] != "BOOKMARK":
                    assert (event["type"] == "ADDED") == (meta["name"] not in known)
                    known[meta["name"]] = version
        assert known == {pod.metadata.name: pod.metadata.resource_version for pod in target.items}
