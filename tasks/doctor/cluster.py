"""The checks of a cluster: first what the API server says, then what pods with a rollout's labels can do."""

import asyncio
import contextlib
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kubernetes.aio.client import Configuration
from kubernetes.utils.quantity import parse_quantity

from tasks.doctor import Check
from tasks.doctor import pods
from tasks.doctor.versions import judge
from tasks.doctor.versions import wanted
from tasks.kube.api import Api
from tasks.kube.api import ApiError
from tasks.kube.api import batch
from tasks.kube.api import core
from tasks.kube.launcher import delete
from tasks.kube.outcome import Ended
from tasks.kube.outcome import Lost
from tasks.kube.outcome import Waiting
from tasks.kube.outcome import read
from tasks.kube.permissions import NEEDED
from tasks.run import ROOT

SETTINGS = "openforge"
"""The ConfigMap of deploy/kubernetes/base/settings.yaml."""
PUBLIC = (("1.1.1.1", 443), ("8.8.8.8", 53), ("169.254.169.254", 80))
"""What no rollout may reach: the internet, a name server, the cloud's own metadata (and so its credentials)."""
NAMED = (
    *("system_namespace", "service_account", "priority_class", "runs_claim"),
    *("trainer_image", "sidecar_image", "task_image"),
)
SERVICES = ("policy", "postgres", "prefect-server", "prefect-worker", "proxy")
"""Values of the label `openforge/part`, of which at least one pod must be ready."""
PROXY_PORT = 9100
BOUND_S = 600.0
"""How long a probe may take, most of which is for its image."""
_APPLY = "kubectl apply -k deploy/kubernetes/overlays/<kind or aks>"
_PAYLOAD = "payload."


@dataclass(frozen=True)
class Place:
    """Where the probes run, and with what. `public` must not be reachable from there."""

    api: Api
    namespace: str
    settings: dict[str, str]
    bound_s: float
    public: tuple[tuple[str, int], ...]
    proxy_port: int


async def check_cluster(
    namespace: str,
    configuration: Configuration,
    bound_s: float = BOUND_S,
    public: tuple[tuple[str, int], ...] = PUBLIC,
    proxy_port: int = PROXY_PORT,
) -> AsyncIterator[Check]:
    """All checks, in the order in which one would mend what they find."""
    api = Api(configuration)
    try:
        reached = await _reached(api, configuration.host)
        yield reached
        if not reached.ok:
            return
        yield await _allowed(api, namespace)
        yield await _quota(api, namespace)
        try:
            found = await api.ask("GET", core(namespace, "configmaps", SETTINGS))
        except ApiError as error:
            remedy = f"; {_APPLY}" if error.status == 404 else ""
            yield Check("settings", False, f"ConfigMap {SETTINGS} in namespace {namespace}: {error}{remedy}")
            return
        settings = found.get("data", {})
        if absent := [name for name in NAMED if name not in settings]:
            yield Check("settings", False, f"ConfigMap {SETTINGS} does not name {', '.join(absent)}; {_APPLY}")
            return
        place = Place(api, namespace, settings, bound_s, public, proxy_port)
        yield await _priority(place)
        yield await _services(place)
        async for check in _probes(place):
            yield check
    finally:
        await api.close()


async def _probes(place: Place) -> AsyncIterator[Check]:
    """All probes at once; when this is cancelled they remove their Jobs first."""
    probes = [_network(place), _storage(place), *(_harness(place, name) for name in _harnesses(place))]
    running = [asyncio.create_task(probe) for probe in probes]
    try:
        for done in asyncio.as_completed(running):
            for check in await done:
                yield check
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _reached(api: Api, host: str) -> Check:
    try:
        version = await api.ask("GET", "/version", timeout_s=10)
    except ApiError as error:
        return Check("API server", False, f"{host}: {error}; check KUBECONFIG, and that the cluster runs")
    return Check("API server", True, f"{version['gitVersion']} at {host}")


async def _allowed(api: Api, namespace: str) -> Check:
    missing = []
    try:
        for (group, resource), verbs in NEEDED.items():
            for verb in verbs:
                asked = {"namespace": namespace, "group": group, "resource": resource, "verb": verb}
                review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
                path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
                answer = await api.ask("POST", path, body=review | {"spec": {"resourceAttributes": asked}})
                if not answer["status"]["allowed"]:
                    missing.append(f"{verb} {resource}")
    except ApiError as error:
        return Check("permissions", None, f"the cluster does not tell: {error}")
    if missing:
        remedy = "bind the Role openforge-flow of deploy/kubernetes/base/accounts.yaml to this account"
        return Check("permissions", False, f"not allowed in namespace {namespace}: {', '.join(missing)}; {remedy}")
    return Check("permissions", True, f"all {sum(map(len, NEEDED.values()))} that a run needs in {namespace}")


async def _quota(api: Api, namespace: str) -> Check:
    try:
        quotas, _ = await api.listed(core(namespace, "resourcequotas"), [])
    except ApiError as error:
        return Check("quota", None, f"not told: {error}")
    left: list[str] = []
    full: list[str] = []
    for quota in quotas:
        hard, used = quota["spec"].get("hard", {}), quota.get("status", {}).get("used", {})
        for name, amount in sorted(hard.items()):
            words = f"{name} {used.get(name, '0')} of {amount}"
            (full if parse_quantity(used.get(name, "0")) >= parse_quantity(amount) else left).append(words)
    if full:
        return Check("quota", False, f"used up in {namespace}: {', '.join(full)}; end other runs or raise the quota")
    return Check("quota", True, ", ".join(left) or f"none in {namespace}")


async def _priority(place: Place) -> Check:
    name = place.settings["priority_class"]
    try:
        found = await place.api.ask("GET", f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")
    except ApiError as error:
        if error.status == 404:
            return Check("priority", False, f"there is no PriorityClass {name}; {_APPLY}")
        return Check("priority", None, f"{error}; the probe pods below ask for it")
    return Check("priority", True, f"{name} is {found['value']}")


async def _services(place: Place) -> Check:
    system = place.settings["system_namespace"]
    try:
        found, _ = await place.api.listed(core(system, "pods"), [("labelSelector", "openforge/part")])
    except ApiError as error:
        return Check("services", None, f"the pods of {system} are not told: {error}")
    ready: Counter[str] = Counter()
    trouble = {}
    for pod in found:
        part = pod["metadata"]["labels"]["openforge/part"]
        if any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ())):
            ready[part] += 1
        elif part in SERVICES:
            trouble[part] = f"{pod['metadata']['name']} is not ready: {_why(pod)}"
    if missing := [trouble.get(part, f"{part} has no pod") for part in SERVICES if not ready[part]]:
        return Check("services", False, f"{'; '.join(missing)}; kubectl -n {system} describe pods")
    return Check("services", True, ", ".join(f"{ready[part]} {part}" for part in SERVICES))


def _why(pod: dict[str, Any]) -> str:
    """What its first waiting container waits for, or its phase."""
    status = pod["status"]
    for each in [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]:
        if waiting := each["state"].get("waiting"):
            return f"{waiting.get('reason')} {waiting.get('message', '')}".strip()
        if "running" in each["state"] and each in status.get("initContainerStatuses", ()):
            return f"its init container {each['name']} runs; kubectl logs -c {each['name']} says what it waits for"
    return str(status.get("phase"))


def _harnesses(place: Place) -> list[str]:
    return sorted(key.removeprefix(_PAYLOAD) for key in place.settings if key.startswith(_PAYLOAD))


async def _network(place: Place) -> list[Check]:
    system = place.settings["system_namespace"]
    try:
        found, _ = await place.api.listed(core(system, "pods"), [("labelSelector", "openforge/part=proxy")])
    except ApiError as error:
        return [Check("proxy", None, f"the pods of {system} are not told: {error}")]
    ips = [pod["status"]["podIP"] for pod in found if pod["status"].get("podIP")]
    given = {"proxies": [[ip, place.proxy_port] for ip in ips], "denied": place.public}
    job = pods.python_probe(_name("network"), place.settings["sidecar_image"], "network", given)
    pods.placed(job, place.settings["service_account"], place.settings["priority_class"])
    said = await _run(place, place.namespace, job, json.loads)
    if isinstance(said, str) or "error" in said:
        return [Check("network", False, f"the probe pod: {said if isinstance(said, str) else said['error']}")]
    unreachable, ways_out = said["unreachable"], said["open"]
    checks = [Check("sidecar image", True, place.settings["sidecar_image"])]
    if not ips:
        remedy = f"kubectl -n {system} get pods -l openforge/part=proxy"
        checks.append(Check("proxy", False, f"no proxy runs in {system}: {remedy}"))
    elif unreachable:
        words = "; ".join(f"{name}: {why}" for name, why in unreachable.items())
        remedy = f"check the NetworkPolicies rollout ({place.namespace}) and proxy ({system})"
        checks.append(Check("proxy", False, f"not reached from a rollout pod: {words}; {remedy}"))
    else:
        checks.append(Check("proxy", True, f"{len(ips)} replicas reached from a rollout pod"))
    if ways_out:
        remedy = "the cluster does not enforce NetworkPolicies, or one allows too much (docs/kubernetes.md)"
        checks.append(Check("egress", False, f"a rollout pod reaches {', '.join(ways_out)}: {remedy}"))
    else:
        checks.append(Check("egress", True, f"denied, {said['denied']} addresses tried from a rollout pod"))
    return checks


async def _storage(place: Place) -> list[Check]:
    system, claim = place.settings["system_namespace"], place.settings["runs_claim"]
    # In the flow's image, so that this one is known to be there, too.
    image = place.settings["trainer_image"]
    job = pods.python_probe(_name("storage"), image, "storage", {"folder": "/runs"}, claim)
    said = await _run(place, system, job, json.loads)
    name = f"storage (claim {claim} in {system})"
    if isinstance(said, str):
        return [Check(name, False, f"the probe pod: {said}")]
    if "error" in said:
        return [Check(name, False, f"not writable for user {pods.UID}: {said['error']}; check its StorageClass")]
    return [Check(name, True, f"writable, {said['free_bytes'] >> 30} GiB free ({image})")]


async def _harness(place: Place, name: str) -> list[Check]:
    image, task = place.settings[_PAYLOAD + name], place.settings["task_image"]
    job = pods.harness_probe(_name(f"harness-{name.replace('_', '-')}"), name, image, task)
    pods.placed(job, place.settings["service_account"], place.settings["priority_class"])
    said = await _run(place, place.namespace, job, lambda message: [message])
    if isinstance(said, str):
        return [Check(name, False, f"the probe pod ({image} in {task}): {said}")]
    ok, words = judge(said[0], wanted(ROOT).get(name))
    return [Check(name, ok, f"{words} ({image} in {task})")]


def _name(what: str) -> str:
    return f"{pods.RUN}-{what}-{uuid.uuid4().hex[:6]}"


async def _run(place: Place, namespace: str, job: dict[str, Any], parse: Callable[[str], Any]) -> Any:
    """The probe's termination message, parsed; a string if there is none: why, in the cluster's own words."""
    name = job["metadata"]["name"]
    try:
        await place.api.ask("POST", batch(namespace), body=job)
        async with asyncio.timeout(place.bound_s):
            return await _message(place, namespace, name, parse)
    except ApiError as error:
        return str(error)
    except TimeoutError:
        return f"no result after {place.bound_s:.0f} s: {await _still(place, namespace, name)}"
    finally:
        # Also when the POST was not answered: it may have worked. Its deadline and its time to live remove it if this
        # does not.
        with contextlib.suppress(ApiError):
            await delete(place.api, namespace, name)


async def _message(place: Place, namespace: str, name: str, parse: Callable[[str], Any]) -> Any:
    while True:
        state, pod = await _state(place, namespace, name)
        if isinstance(state, Lost):
            return state.detail
        if isinstance(state, Ended) and pod is not None:
            ended = next(each for each in pod["status"]["containerStatuses"] if each["name"] == "agent")
            message = ended["state"]["terminated"].get("message", "")
            if state.exit_code or not message:
                return f"it ended with {state.exit_code} and said {message.strip()[:300] or 'nothing'!r}"
            return parse(message)
        await asyncio.sleep(0.5)


async def _still(place: Place, namespace: str, name: str) -> str:
    with contextlib.suppress(ApiError):
        state, _ = await _state(place, namespace, name)
        if isinstance(state, Waiting):
            return state.detail
    return "it runs"


async def _state(place: Place, namespace: str, name: str) -> tuple[Any, dict[str, Any] | None]:
    job = await place.api.ask("GET", batch(namespace, name))
    found, _ = await place.api.listed(core(namespace, "pods"), [("labelSelector", f"job-name={name}")])
    pod = found[0] if found else None
    return read(job, pod, False, False), pod
