"""What a Job and its pod say about a try: a pure reading of their last states, in the cluster's own words.

`Waiting` has a bound, named as in `settings.Bounds`; when it has passed the try is `Lost`. `Ended` is the agent's own
end, whatever its exit code. `Lost` is never the policy's doing (case O44): a new try follows, except where the
cluster says that no try can succeed, such as an image that does not exist (case O45).
"""

import re
from dataclasses import dataclass
from typing import Any

AGENT = "agent"


@dataclass(frozen=True)
class Waiting:
    """Not running yet, or on its way out, for `detail`."""

    bound: str
    detail: str


@dataclass(frozen=True)
class Running:
    """The agent's container runs."""


@dataclass(frozen=True)
class Ended:
    """The agent's container has ended. `oom`: the kernel killed in it at the container's own memory limit."""

    exit_code: int
    oom: bool
    detail: str


@dataclass(frozen=True)
class Lost:
    """The cluster took the try away, or never gave it a place. `hopeless`: another try would end the same way."""

    detail: str
    hopeless: bool = False


State = Waiting | Running | Ended | Lost

# What a registry or a runtime says when waiting helps, which is asked first, and what it says when no waiting does.
_PASSING = ("qps exceeded", "toomanyrequests", "too many requests", "429", "timeout", "connection reset")
_WRONG = (
    "manifest unknown",
    "name unknown",
    "not found",
    "does not exist",
    "no matching manifest",
    "no match for platform",
    "invalid reference format",
    "pull access denied",
    "unauthorized",
    "authentication required",
    "forbidden",
)
_PULLING = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError")
_MISCONFIGURED = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreStartHookError")
_GENERIC = "BackoffLimitExceeded"
"""What a Job says whenever its pod failed; the pod knows better."""
_CANNOT_START = ("StartError", "ContainerCannotRun")


def read(job: dict[str, Any] | None, pod: dict[str, Any] | None, job_gone: bool, pod_gone: bool) -> State:
    """The state of a try from the last states of its Job and pod; `_gone`: no longer there."""
    if pod is not None:
        state = _read_pod(pod)
        if not isinstance(state, Running | Waiting):
            return state
    failed = _failed(job)
    if failed and failed.startswith(_GENERIC) and not pod_gone:
        # Jobs and pods are watched apart, and what the pod says is still on its way.
        return Waiting("record_s", f"{failed}, and what became of the pod was not seen")
    if failed:
        return Lost(failed)
    if job_gone:
        return Lost("Deleted: somebody else deleted the Job")
    if pod_gone:
        return Lost("Gone: the pod is not there any more and left no last word")
    return Waiting("schedule_s", "no pod yet") if pod is None else state


def is_running(pod: dict[str, Any]) -> bool:
    """Whether the agent's container runs."""
    return "running" in _agent(pod.get("status", {}))


def _agent(status: dict[str, Any]) -> dict[str, Any]:
    """The agent's container's state."""
    statuses = status.get("containerStatuses", ())
    return next((each.get("state", {}) for each in statuses if each["name"] == AGENT), {})


def _read_pod(pod: dict[str, Any]) -> State:
    status = pod.get("status", {})
    if status.get("reason") and (status.get("phase") == "Failed" or status["reason"] == "NodeLost"):
        return Lost(_words(status["reason"], status.get("message")))
    if disrupted := _condition(status, "DisruptionTarget"):
        return Lost(_words(disrupted.get("reason"), disrupted.get("message")))
    if status.get("phase") == "Unknown":
        return Lost("NodeLost: the node does not answer")
    if broken := _broken_start(status):
        return broken
    ended = _agent(status).get("terminated")
    if ended:
        return _read_end(ended, pod)
    if "deletionTimestamp" in pod["metadata"]:
        return Waiting("delete_s", "Deleted: somebody else is deleting the pod")
    if waiting := _read_waiting(status):
        return waiting
    scheduled = _condition(status, "PodScheduled", "False")
    if scheduled:
        return Waiting("schedule_s", _words(scheduled.get("reason"), scheduled.get("message")))
    if "running" in _agent(status):
        return Running()
    return Waiting("schedule_s", "the pod has no node yet")


def _read_end(ended: dict[str, Any], pod: dict[str, Any]) -> State:
    reason = ended.get("reason")
    words = _words(reason, ended.get("message"))
    if reason == "ContainerStatusUnknown":
        return Lost(words)
    if reason in _CANNOT_START:
        return Lost(f"{words} (image {_image(pod, AGENT)})")
    if "deletionTimestamp" in pod["metadata"] and ended["exitCode"] in (137, 143):
        return Lost("Deleted: somebody else deleted the pod")
    return Ended(ended["exitCode"], reason == "OOMKilled", words)


def _broken_start(status: dict[str, Any]) -> Lost | None:
    """An init container that failed: the agent will never start."""
    for each in status.get("initContainerStatuses", ()):
        ended = each.get("state", {}).get("terminated")
        if ended and ended["exitCode"]:
            words = _words(ended.get("reason"), ended.get("message"))
            return Lost(f"init container {each['name']} ended with {ended['exitCode']}: {words}")
    return None


def _read_waiting(status: dict[str, Any]) -> State | None:
    """The state of a container that cannot start; None if all that must run do."""
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    found: State | None = None
    for each in containers:
        waiting = each.get("state", {}).get("waiting")
        if not waiting:
            continue
        reason, message = waiting.get("reason", ""), waiting.get("message")
        words = _words(reason, message)
        image = each.get("image", "")
        if reason == "InvalidImageName" or (reason in _PULLING and _is_wrong(reason, message, image)):
            return Lost(words if image in words else f"image {image}: {words}", hopeless=True)
        if reason in _MISCONFIGURED:
            return Waiting("config_s", words)
        if found is None or reason in _PULLING:
            found = Waiting("create_s", words)
    return found


def _is_wrong(reason: str, message: str | None, image: str) -> bool:
    # Without the names in it: a port, a digest or a repository can look like one of the words.
    text = re.sub(r"\S*/\S*", " ", message or "")
    if host := image.split("/")[0]:
        text = text.replace(host, " ")
    text = text.lower()
    if any(words in text for words in _PASSING):
        return False
    return reason == "ErrImageNeverPull" or any(words in text for words in _WRONG)


def _failed(job: dict[str, Any] | None) -> str | None:
    """Why the Job says that it failed; its pod's own words, where there are any, were read before."""
    for kind in ("Failed", "FailureTarget"):
        condition = _condition((job or {}).get("status", {}), kind)
        if condition:
            return _words(condition.get("reason"), condition.get("message"))
    return None


def _condition(status: dict[str, Any], kind: str, value: str = "True") -> dict[str, Any] | None:
    found = (each for each in status.get("conditions", ()) if each["type"] == kind and each["status"] == value)
    return next(found, None)


def _image(pod: dict[str, Any], name: str) -> str:
    return next(each["image"] for each in pod["spec"]["containers"] if each["name"] == name)


def _words(reason: str | None, message: str | None) -> str:
    return ": ".join(part.strip() for part in (reason, message) if part and part.strip()) or "no reason given"
