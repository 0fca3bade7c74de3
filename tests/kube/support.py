"""What the tests of the cluster share: clients, a Job, waiting."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from kubernetes.aio import client

from tests.kube.cluster import Cluster
from tests.kube.objects import Object

NAMESPACE = "openforge"


@dataclass(frozen=True)
class Clients:
    """The real clients; `Any`, because a test knows which optional field is there."""

    batch: Any
    core: Any


@asynccontextmanager
async def clients(c: Cluster) -> AsyncIterator[Clients]:
    async with client.ApiClient(c.aio_configuration()) as api:
        yield Clients(client.BatchV1Api(api), client.CoreV1Api(api))


def make_job(name: str, labels: dict[str, str] | None = None, pod: Object | None = None, **spec: Any) -> Object:
    container = {"name": "main", "image": "registry.test/task:1"}
    template: Object = {
        "metadata": {"labels": labels or {}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    template["spec"] |= pod or {}
    kind: Object = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels or {}}}
    return kind | {"spec": {"backoffLimit": 0, "template": template} | spec}


def make_pod(name: str, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    template = make_job(name, labels, spec)["spec"]["template"]
    template["metadata"]["name"] = name
    return template | {"apiVersion": "v1", "kind": "Pod"}


async def eventually(look: Callable[[], Any], within_s: float = 5) -> Any:
    """What `look` gives, or gives when awaited, once it is true."""
    async with asyncio.timeout(within_s):
        while True:
            found = look()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.01)
