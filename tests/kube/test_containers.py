"""What only real containers have: users, roots that are read-only, images from a registry."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tasks.kube import outcome
from tests.kube.cluster import Cluster
from tests.kube.cluster import cluster
from tests.kube.kinds import real
from tests.kube.objects import Object
from tests.kube.support import NAMESPACE
from tests.kube.support import Clients
from tests.kube.support import eventually
from tests.kube.support import make_pod

IMAGE = "registry.test/task:1"
SECURITY: Object = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}
LOCKED: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture
async def c(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with real("containers", tmp_path, {IMAGE: {}}) as script, cluster(script) as it:
        yield it


async def run(c: Cluster, k: Clients, text: str, mounts: list[Object] | None = None, **pod: Any) -> tuple[Object, str]:
    """Run `text` in a shell, locked up as our pods are; the pod's last state and what it printed."""
    main = {"name": "main", "image": IMAGE, "command": ["sh", "-c", text], "securityContext": LOCKED}
    body = make_pod("one", containers=[main | {"volumeMounts": mounts or []}], securityContext=SECURITY, **pod)
    await k.core.create_namespaced_pod(NAMESPACE, body)
    return await ended(c), await k.core.read_namespaced_pod_log("one", NAMESPACE)


async def ended(c: Cluster) -> Object:
    def look() -> Object | None:
        pod = c.objects.get("pods", NAMESPACE, "one")
        return pod if pod["status"]["phase"] in ("Succeeded", "Failed") else None

    pod: Object = await eventually(look, 20)
    return pod


async def test_a_user_of_its_own_who_may_do_nothing(c: Cluster, k: Clients) -> None:
    text = """
        id -u; id -g; id -G; echo $$$$
        touch /etc/mine 2>/dev/null || echo read-only
        ls /var/run/secrets 2>/dev/null || echo no token
        grep -E 'CapBnd|NoNewPrivs|^Seccomp:' /proc/self/status | tr -d '\t'
        echo bye > /dev/termination-log; exit 3
    """
    pod, said = await run(c, k, text)
    expected = ["1000", "1000", "1000", "1", "read-only", "no token"]
    assert said.splitlines() == [*expected, "CapBnd:0000000000000000", "NoNewPrivs:1", "Seccomp:2"]
    state = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["exitCode"], state["reason"], state["message"]) == (3, "Error", "bye\n")


async def test_volumes_belong_to_the_pods_group(c: Cluster, k: Clients) -> None:
    for kind, create in (("secret", k.core.create_namespaced_secret), ("map", k.core.create_namespaced_config_map)):
        field = "stringData" if kind == "secret" else "data"
        await create(NAMESPACE, {"metadata": {"name": kind}, field: {kind: f"the {kind}"}})
    both = [{"secret": {"name": "secret"}}, {"configMap": {"name": "map", "items": [{"key": "map", "path": "a/b"}]}}]
    volumes: list[Object] = [
        {"name": "work", "emptyDir": {}},
        {"name": "key", "secret": {"secretName": "secret", "defaultMode": 0o440}},
        {"name": "all", "projected": {"sources": both}},
    ]
    mounts: list[Object] = [
        {"name": "work", "mountPath": "/work"},
        {"name": "work", "mountPath": "/seen", "readOnly": True},
        {"name": "key", "mountPath": "/key", "readOnly": True},
        {"name": "all", "mountPath": "/all"},
    ]
    text = """
        stat -c '%u %g %a' /work /key/secret; cat /key/secret /all/secret /all/a/b; echo
        echo made > /work/made; cat /seen/made; stat -c '%u %g' /work/made
        touch /seen/more 2>/dev/null || echo read-only; touch -d yesterday /work 2>/dev/null || echo not mine
    """
    _, said = await run(c, k, text, mounts, volumes=volumes)
    assert said.splitlines() == [
        *("0 1000 2777", "0 1000 440", "the secretthe secretthe map"),
        *("made", "1000 1000", "read-only", "not mine"),
    ]


@pytest.mark.parametrize(("status", "hopeless"), [(404, True), (401, True), (403, True), (429, False), (503, False)])
async def test_what_a_registrys_refusal_means_in_containerds_words(
    c: Cluster, k: Clients, status: int, hopeless: bool
) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    image = f"127.0.0.1:{runner.addresses[0][1]}/openforge/task:1"
    main = {"name": "main", "image": image, "command": ["true"]}
    try:
        await k.core.create_namespaced_pod(NAMESPACE, make_pod("one", containers=[main]))

        def told() -> outcome.State | None:
            pod = c.objects.get("pods", NAMESPACE, "one")
            state = outcome.read(None, pod, False, False)
            return state if "ErrImagePull" in str(state) else None

        state = await eventually(told, 20)
    finally:
        await runner.cleanup()
    assert isinstance(state, outcome.Lost if hopeless else outcome.Waiting), state
    assert image in state.detail
