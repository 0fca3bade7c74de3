"""The doctor against the test cluster, its probes really run: as processes, over real sockets and folders."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tasks import harnesses
from tasks.doctor import Check
from tasks.doctor import pods
from tasks.doctor.cluster import SERVICES
from tasks.doctor.cluster import check_cluster
from tasks.doctor.versions import wanted
from tasks.run import ROOT
from tests.deploy.manifests import base
from tests.kube import scripts
from tests.kube.cluster import Cluster
from tests.kube.cluster import cluster
from tests.kube.kinds import real
from tests.kube.kubelet import ANNOTATION
from tests.kube.kubelet import Script
from tests.kube.pods import Pod
from tests.kube.processes import Processes
from tests.kube.resources import RESOURCES
from tests.kube.resources import Resource
from tests.kube.support import eventually
from training.child import free_port

PROGRAMS = {"claude_code": "claude-code/claude", "codex": "codex/bin/codex"}


@pytest.fixture(autouse=True)
def priority_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = Resource("scheduling.k8s.io", "priorityclasses", "PriorityClass", namespaced=False)
    monkeypatch.setitem(RESOURCES, "priorityclasses", kind)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """The payload images' /opt, in one folder: programs that say the pinned versions."""
    for name, program in PROGRAMS.items():
        file = tmp_path / "opt" / program
        file.parent.mkdir(parents=True)
        file.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{name} {wanted(ROOT)[name]}"\n')
        file.chmod(0o755)
    (tmp_path / "resolv.conf").write_text("search test\n")
    return tmp_path


class Told:
    """A pod whose containers leave a termination message."""

    def __init__(self, pod: Pod, file: Path) -> None:
        self._pod, self._file = pod, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pod, name)

    def exited(self, code: int, reason: str = "", container: str | None = None, message: str = "") -> None:
        said = self._file.read_text()[:4096] if self._file.exists() else message
        self._pod.exited(code, reason, container, said)


def really(folder: Path) -> Script:
    """The probes as processes."""

    async def script(pod: Pod) -> None:
        file = folder / f"{pod.uid}.message"
        stands_for = {
            "/dev/termination-log": file,
            "/etc/resolv.conf": folder / "resolv.conf",
            "/opt": folder / "opt",
        }
        named = [c["image"] for kind in ("initContainers", "containers") for c in pod.spec.get(kind, ())]
        await Processes(folder / "pods", dict.fromkeys(named, stands_for))(Told(pod, file))  # type: ignore[arg-type]

    return script


def instead(what: str, other: Script, folder: Path) -> Script:
    """As `really`, but the probe of that name fares otherwise."""

    async def script(pod: Pod) -> None:
        await (other if f"{pods.RUN}-{what}" in pod.name else really(folder))(pod)

    return script


@asynccontextmanager
async def deployed(script: Script, *parts: str) -> AsyncIterator[Cluster]:
    """A cluster with what deploy/kubernetes/base brings, as far as the doctor looks at it."""
    async with cluster(script) as c:
        c.objects.create("namespaces", {"metadata": {"name": "openforge-system"}, "status": {"phase": "Active"}})
        for item in base():
            plural = {"ConfigMap": "configmaps", "ResourceQuota": "resourcequotas", "PriorityClass": "priorityclasses"}
            if item["kind"] in plural:
                c.objects.create(plural[item["kind"]], item, item["metadata"].get("namespace", ""))
        await asyncio.sleep(0)  # the kubelets see what is made after they have begun
        for number, part in enumerate(parts or SERVICES):
            await _service(c, part, f"{part}-{number}")
        yield c
        await asyncio.sleep(0.05)
        left = [item["metadata"]["name"] for item in c.objects.all("jobs") if pods.RUN in item["metadata"]["name"]]
        assert left == [], "the doctor leaves Jobs behind"


async def _service(c: Cluster, part: str, name: str) -> None:
    meta: dict[str, Any] = {"name": name, "labels": {"openforge/part": part}}
    meta["annotations"] = {ANNOTATION: json.dumps({"name": "exits", "after": 600})}
    spec = {"containers": [{"name": part, "image": "test:1"}]}
    c.api.create(RESOURCES["pods"], {"kind": "Pod", "metadata": meta, "spec": spec}, "openforge-system")
    await eventually(lambda: c.objects.get("pods", "openforge-system", name)["status"].get("podIP"))


async def examine(c: Cluster, **given: Any) -> dict[str, Check]:
    closed = ("127.0.0.1", free_port())
    options: dict[str, Any] = {"bound_s": 20.0, "public": (closed,), "proxy_port": free_port()} | given
    found = [check async for check in check_cluster("openforge", c.aio_configuration(), **options)]
    return {check.name: check for check in found}


@pytest.fixture
def proxy() -> Iterator[web.Application]:
    """Refuses who shows no key, as the proxy does."""
    yield web.Application()


@pytest.mark.timeout(60)
async def test_all_is_well(images: Path, proxy: web.Application) -> None:
    async with TestServer(proxy) as server, deployed(really(images), *SERVICES, "proxy") as c:
        checks = await examine(c, proxy_port=server.port)
    assert {name: check.ok for name, check in checks.items()} == dict.fromkeys(checks, True)
    assert checks["permissions"].text == "all 12 that a run needs in openforge"
    assert "pods 0 of 300" in checks["quota"].text
    assert checks["proxy"].text == "2 replicas reached from a rollout pod"
    assert checks["egress"].text.startswith("denied, 1 addresses tried")
    assert checks["claude_code"].text.startswith(wanted(ROOT)["claude_code"])
    assert checks["storage (claim runs in openforge-system)"].text.startswith("writable, ")
    assert checks["services"].text == "1 policy, 1 postgres, 1 prefect-server, 1 prefect-worker, 2 proxy"


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_the_real_harnesses_in_real_containers(tmp_path: Path) -> None:
    """By user 1000 on a read-only root. (What the network lets through is this machine's, so it isn't looked at.)"""
    told = next(item["data"] for item in base() if item["kind"] == "ConfigMap")
    images: dict[str, dict[str, Path]] = {told[f"{what}_image"]: {} for what in ("trainer", "sidecar", "task")}
    for name in PROGRAMS:
        images[told[f"payload.{name}"]] = harnesses.load(name).binds(ROOT / harnesses.INSTALL)
    async with real("containers", tmp_path, images) as script, deployed(script) as c:
        checks = await examine(c)
    for name in (*PROGRAMS, "sidecar image", "storage (claim runs in openforge-system)"):
        assert checks[name].ok, checks[name].text


@pytest.mark.timeout(60)
async def test_a_way_out_and_a_wrong_proxy(images: Path) -> None:
    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.add_routes([web.get("/", hello)])
    async with TestServer(app) as server, deployed(really(images)) as c:
        outside = ("127.0.0.1", server.port)
        checks = await examine(c, proxy_port=server.port, public=(outside,))
        reached = f"reaches 127.0.0.1:{server.port}"
    assert checks["egress"].ok is False and reached in checks["egress"].text
    assert checks["proxy"].ok is False and "answered 200, which the proxy does not" in checks["proxy"].text


@pytest.mark.timeout(60)
async def test_name_servers_must_not_be_reached_either(images: Path, proxy: web.Application) -> None:
    (images / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    async with deployed(really(images)) as c:
        checks = await examine(c)
    assert checks["egress"].text.startswith("denied, 2 addresses tried")
    assert checks["proxy"].ok is False and "ConnectionRefusedError" in checks["proxy"].text


@pytest.mark.timeout(60)
async def test_no_proxy_no_right_no_quota_no_priority(images: Path) -> None:
    async with deployed(really(images), "policy", "flow") as c:
        c.api.denied |= {("watch", "pods"), ("create", "secrets")}
        c.objects.change("resourcequotas", "openforge", "rollouts", lambda item: item["spec"]["hard"].update(pods="0"))
        c.objects.delete("priorityclasses", "", "openforge-rollout")
        checks = await examine(c)
    assert "postgres has no pod; prefect-server has no pod" in checks["services"].text
    failed = {name for name, check in checks.items() if check.ok is False}
    # A quota of 0 pods keeps the probes of that namespace from starting; the storage's is in the other.
    assert failed == {"permissions", "quota", "priority", "services", "network", "claude_code", "codex"}
    assert "not allowed in namespace openforge: create secrets, watch pods" in checks["permissions"].text
    assert "pods 0 of 0" in checks["quota"].text
    assert "no PriorityClass openforge-rollout" in checks["priority"].text


@pytest.mark.parametrize(
    ("what", "script", "name", "words"),
    [
        ("harness-codex", scripts.cannot_pull(), "codex", "manifest unknown"),
        ("harness-codex", scripts.init_exits(1), "codex", "init container payload ended with 1"),
        ("harness-claude-code", scripts.exits(127), "claude_code", "it ended with 127"),
        ("network", scripts.unschedulable(), "network", "no result after 3 s: Unschedulable"),
        ("storage", scripts.waits("ContainerCreating"), "storage (claim runs in openforge-system)", "no result after"),
        ("network", scripts.evicted(), "network", "Evicted"),
    ],
)
@pytest.mark.timeout(60)
async def test_a_probe_that_fails_says_it_in_the_clusters_words(
    what: str, script: Script, name: str, words: str, images: Path
) -> None:
    async with deployed(instead(what, script, images)) as c:
        checks = await examine(c, bound_s=3)
    assert checks[name].ok is False
    assert words in checks[name].text


@pytest.mark.timeout(60)
async def test_a_service_that_is_not_ready(images: Path) -> None:
    async with deployed(really(images)) as c:
        name = next(p["metadata"]["name"] for p in c.objects.all("pods") if "policy" in p["metadata"]["name"])

        def waits(pod: dict[str, Any]) -> None:
            waiting = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting"}
            pod["status"]["containerStatuses"][0]["state"] = {"waiting": waiting}
            pod["status"]["conditions"] = []

        c.objects.change("pods", "openforge-system", name, waits)
        checks = await examine(c)
    words = f"{name} is not ready: CrashLoopBackOff back-off 5m0s restarting; kubectl -n openforge-system describe"
    assert checks["services"].ok is False and checks["services"].text.startswith(words)


@pytest.mark.timeout(60)
async def test_a_harness_of_another_version(images: Path) -> None:
    (images / "opt" / PROGRAMS["codex"]).write_text("#!/bin/sh\necho codex-cli 0.1.0\n")
    async with deployed(really(images)) as c:
        checks = await examine(c)
    assert checks["codex"].ok is False
    assert f"'codex-cli 0.1.0', deploy/harnesses pins {wanted(ROOT)['codex']}" in checks["codex"].text


async def test_nothing_deployed() -> None:
    async with cluster() as c:
        checks = await examine(c)
    assert list(checks) == ["API server", "permissions", "quota", "settings"]
    assert checks["settings"].ok is False and "kubectl apply -k" in checks["settings"].text


async def test_settings_that_lack_a_name() -> None:
    async with cluster() as c:
        c.objects.create("configmaps", {"metadata": {"name": "openforge"}, "data": {}}, "openforge")
        checks = await examine(c)
    assert checks["settings"].ok is False and "does not name system_namespace" in checks["settings"].text


async def test_no_answer() -> None:
    async with cluster() as c:
        configuration = c.aio_configuration()
    (check,) = [check async for check in check_cluster("openforge", configuration)]
    assert check.ok is False and "check KUBECONFIG" in check.text


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_the_command(tmp_path: Path) -> None:
    async with cluster() as c:
        env = {**os.environ, "KUBECONFIG": str(c.kubeconfig(tmp_path))}
        argv = [sys.executable, "-m", "tasks.doctor", "--profile", "kubernetes"]
        process = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, env=env, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
    lines = output.decode().splitlines()
    assert process.returncode == 1
    assert lines[0] == f"ok    API server: v1.35.0+test at {c.url}"
    assert lines[1:3] == ["ok    permissions: all 12 that a run needs in openforge", "ok    quota: none in openforge"]
    assert lines[3].startswith("FAIL  settings: ConfigMap openforge in namespace openforge: 404")
    assert lines[4:] == ["doctor: 1 check failed"]


@pytest.mark.timeout(60)
async def test_who_interrupts_it_leaves_nothing_behind(images: Path) -> None:
    async with deployed(scripts.exits(after=60)) as c:
        running = asyncio.create_task(examine(c))
        await eventually(lambda: len([job for job in c.objects.all("jobs") if "status" in job]) == 4)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()
