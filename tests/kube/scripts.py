"""What can become of a pod. Each function makes a script; times are seconds."""

import asyncio
import random
from collections.abc import Awaitable
from collections.abc import Callable

from tests.kube.pods import Pod
from tests.kube.pods import for_ever

Script = Callable[[Pod], Awaitable[None]]

MANIFEST_UNKNOWN = (
    'rpc error: code = NotFound desc = failed to pull and unpack image "{image}": failed to resolve reference '
    '"{image}": {image}: not found: manifest unknown'
)
QPS_EXCEEDED = "pull QPS exceeded"
TOO_MANY_REQUESTS = (
    'rpc error: code = Unknown desc = failed to pull and unpack image "{image}": failed to copy: '
    "429 Too Many Requests: toomanyrequests: You have reached your pull rate limit"
)
NO_NODE = "0/1 nodes are available: 1 Insufficient memory. preemption: 0/1 nodes are available: 1 No preemption victims"


async def _start(pod: Pod, starts_after: float = 0) -> None:
    await pod.schedule()
    await asyncio.sleep(starts_after)
    pod.running()


def exits(code: int = 0, after: float = 0.02, log: str = "", starts_after: float = 0) -> Script:
    """Runs and exits; ended as DeadlineExceeded if the pod's own `activeDeadlineSeconds` comes first."""

    async def script(pod: Pod) -> None:
        await _start(pod, starts_after)
        pod.log(log)
        limit = pod.spec.get("activeDeadlineSeconds")
        await asyncio.sleep(after if limit is None else min(after, limit))
        if limit is not None and limit < after:
            pod.failed("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
        else:
            pod.exited(code)

    return script


def heavy_tailed(median: float = 20, sigma: float = 0.5, seed: int = 0) -> Script:
    """Runs for a log-normal time and exits with 0."""
    numbers = random.Random(seed)

    async def script(pod: Pod) -> None:
        await exits(0, median * numbers.lognormvariate(0, sigma))(pod)

    return script


def oom_killed(after: float = 0.02) -> Script:
    """Over the container's own memory limit."""

    async def script(pod: Pod) -> None:
        await _start(pod)
        await asyncio.sleep(after)
        pod.exited(137, "OOMKilled")

    return script


def init_exits(code: int, container: str | None = None) -> Script:
    """An init container (the first if None) fails, so no other container starts."""

    async def script(pod: Pod) -> None:
        await pod.schedule()
        pod.exited(code, container=container or pod.spec["initContainers"][0]["name"])

    return script


def evicted(after: float = 0.02, message: str = "The node was low on resource: memory. ") -> Script:
    async def script(pod: Pod) -> None:
        await _start(pod)
        await asyncio.sleep(after)
        pod.disrupted("TerminationByKubelet", message)
        pod.failed("Evicted", message)
        pod.event("Evicted", message)

    return script


def deadline_exceeded(after: float = 0.02) -> Script:
    async def script(pod: Pod) -> None:
        await _start(pod)
        await asyncio.sleep(after)
        pod.failed("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")

    return script


def node_lost(after: float = 0.02) -> Script:
    """The node stops answering: the pod is marked for deletion and stays so, for nobody can end it."""

    async def script(pod: Pod) -> None:
        await _start(pod)
        await asyncio.sleep(after)
        pod.node_lost = True
        node = pod.item["spec"]["nodeName"]
        pod.disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
        text = f"Node {node} which was running pod {pod.name} is unresponsive"
        pod.change_status(reason="NodeLost", message=text)
        pod.event("NodeNotReady", "Node is not ready")
        pod.objects.delete("pods", pod.namespace, pod.name)
        await for_ever()

    return script


def preempted(after: float = 0.02) -> Script:
    """A pod of higher priority takes its place."""

    async def script(pod: Pod) -> None:
        await _start(pod)
        await asyncio.sleep(after)
        text = "default-scheduler: preempting to accommodate a higher priority pod"
        pod.disrupted("PreemptionByScheduler", text)
        pod.event("Preempted", text)
        pod.objects.delete("pods", pod.namespace, pod.name)
        await for_ever()

    return script


def cannot_pull(text: str = MANIFEST_UNKNOWN, times: float = float("inf"), backoff: float = 0.05) -> Script:
    """ErrImagePull and ImagePullBackOff in turn; after `times` of each the image comes, and the pod exits with 0."""

    async def script(pod: Pod) -> None:
        image = pod.spec["containers"][0]["image"]
        words = text.format(image=image)
        await pod.schedule()
        failures = 0
        while failures < times:
            failures += 1
            pod.waiting("ErrImagePull", words)
            pod.event("Failed", f'Failed to pull image "{image}": {words}')
            await asyncio.sleep(backoff)
            pod.waiting("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {words}')
            await asyncio.sleep(backoff)
        pod.running()
        pod.exited(0)

    return script


def waits(reason: str = "ContainerCreating", message: str = "", seconds: float = float("inf")) -> Script:
    """The container does not start for this reason; after `seconds` it does, and exits with 0."""

    async def script(pod: Pod) -> None:
        await pod.schedule()
        pod.waiting(reason, message.format(image=pod.spec["containers"][0]["image"]))
        if seconds == float("inf"):
            await for_ever()
        await asyncio.sleep(seconds)
        pod.running()
        pod.exited(0)

    return script


def invalid_image_name() -> Script:
    text = 'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": invalid reference format'
    return waits("InvalidImageName", text)


def create_container_config_error(message: str = 'secret "missing" not found') -> Script:
    return waits("CreateContainerConfigError", message)


def unschedulable(message: str = NO_NODE) -> Script:
    async def script(pod: Pod) -> None:
        pod.unschedulable(message)
        await for_ever()

    return script


def deleted(after: float = 0.02, grace: int | None = None) -> Script:
    """Somebody deletes the pod while it runs."""

    async def script(pod: Pod) -> None:
        await _start(pod)
        await asyncio.sleep(after)
        pod.objects.delete("pods", pod.namespace, pod.name, grace_s=grace)
        await for_ever()

    return script


def vanishes(after: float = 0.02, with_job: bool = True) -> Script:
    """Gone without a last event, and its Job too (without it the Job controller would make another pod): only who lists
    again can tell."""

    async def script(pod: Pod) -> None:
        await _start(pod)
        await asyncio.sleep(after)
        gone = pod.objects.remove("pods", pod.namespace, pod.name, quiet=True)
        for owner in gone["metadata"].get("ownerReferences", ()) if with_job else ():
            pod.objects.remove("jobs", pod.namespace, owner["name"], quiet=True)

    return script


def in_turn(*chosen: Script) -> Script:
    """The first pod gets the first script, the second the second; the last one stays."""
    left = list(chosen)

    async def script(pod: Pod) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(pod)

    return script
