"""A Kubernetes cluster in this process, for tests: a real HTTP API over objects in memory, and kubelets that play a
script or run local processes.

    async with cluster(exits(3)) as c:
        batch = client.BatchV1Api(client.ApiClient(c.configuration()))
        await asyncio.to_thread(batch.create_namespaced_job, "default", job)

It lives in the caller's event loop: call the blocking client in a thread. What it is not: there is no TLS, no identity
(`c.api.denied` stands for access control), no scheduling by resources (`capacity` is a number of pods), no network
policy, no admission beyond validation.py and quota.py, no exec, no resource that resources.py does not list.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from kubernetes import client
from kubernetes.aio import client as aio_client

from tests.kube.api import Api
from tests.kube.faults import Faults
from tests.kube.jobs import Jobs
from tests.kube.kubelet import Kubelet
from tests.kube.kubelet import Script
from tests.kube.logs import Logs
from tests.kube.objects import Object
from tests.kube.objects import Objects
from tests.kube.scripts import exits
from tests.kube.watches import Watches

NAMESPACES = ("default", "openforge")


class Cluster:
    def __init__(self, script: Script, capacity: int, nodes: int) -> None:
        self.url = ""
        self.objects, self.logs, self.faults = Objects(), Logs(), Faults()
        self.api = Api(self.objects, self.logs, self.faults)
        self.jobs = Jobs(self.objects, self.api.create)
        self.kubelet = Kubelet(self.objects, self.logs, script, capacity, nodes)

    @property
    def script(self) -> Script:
        """What becomes of pods that start from now on."""
        return self.kubelet.script

    @script.setter
    def script(self, script: Script) -> None:
        self.kubelet.script = script

    @property
    def watches(self) -> Watches:
        return self.api.watches

    @property
    def requests(self) -> "Counter[tuple[str, str]]":
        """How often each (verb, resource) was asked for."""
        return self.api.requests

    def configuration(self) -> client.Configuration:
        configuration = client.Configuration()
        configuration.host = self.url
        return configuration

    def aio_configuration(self) -> aio_client.Configuration:
        """The same for `kubernetes.aio`."""
        configuration = aio_client.Configuration()
        configuration.host = self.url
        return configuration

    def kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig file (JSON is YAML) that leads here."""
        file = folder / "kubeconfig"
        context = {"cluster": "test", "user": "test", "namespace": "openforge"}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": context}],
            "current-context": "test",
        }
        file.write_text(json.dumps(content))
        return file


@asynccontextmanager
async def cluster(
    script: Script | None = None, *, capacity: int = 10_000, nodes: int = 1, port: int = 0
) -> AsyncIterator[Cluster]:
    """A cluster whose nodes have room for `capacity` pods together; raises what a script or controller raised."""
    it = Cluster(script or exits(), capacity, nodes)
    for name in NAMESPACES:
        it.objects.create("namespaces", {"metadata": {"name": name}, "status": {"phase": "Active"}})
    for name in it.kubelet.nodes:
        it.objects.create("nodes", _node(name))
    runner = web.AppRunner(it.api.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    it.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    controllers = [asyncio.create_task(it.jobs.run()), asyncio.create_task(it.kubelet.run())]
    try:
        yield it
    finally:
        for task in controllers:
            task.cancel()
        ends = await asyncio.gather(*controllers, return_exceptions=True)
        await runner.cleanup()
    for error in [*it.kubelet.errors, *ends]:
        if isinstance(error, Exception):
            raise error


def _node(name: str) -> Object:
    info = ("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion")
    more = ("machineID", "operatingSystem", "osImage", "systemUUID")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64"}},
        "spec": {},
        "status": {"conditions": [ready], "nodeInfo": dict.fromkeys((*info, *more), "test")},
    }
