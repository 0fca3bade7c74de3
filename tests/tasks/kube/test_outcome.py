"""What the last states of a Job and its pod are read as."""

from typing import Any

import pytest

from tasks.kube.outcome import Ended
from tasks.kube.outcome import Lost
from tasks.kube.outcome import Running
from tasks.kube.outcome import State
from tasks.kube.outcome import Waiting
from tasks.kube.outcome import read

IMAGE = "registry.test/task:1"


def pod(state: dict[str, Any] | None = None, deleted: bool = False, init: Any = None, **status: Any) -> dict[str, Any]:
    if state is not None:
        status["containerStatuses"] = [
            {"name": "agent", "image": IMAGE, "state": state},
            {"name": "sidecar", "image": "s", "state": {"running": {}}},
        ]
    if init is not None:
        status["initContainerStatuses"] = [{"name": "fetch", "image": "s", "state": init}]
    meta = {"deletionTimestamp": "2026-12-01T00:00:00Z"} if deleted else {}
    spec = {"containers": [{"name": "agent", "image": IMAGE}]}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running", **status}}


def job(kind: str, reason: str, message: str = "words") -> dict[str, Any]:
    return {"status": {"conditions": [{"type": kind, "status": "True", "reason": reason, "message": message}]}}


def condition(kind: str, value: str, reason: str, message: str) -> list[dict[str, str]]:
    return [{"type": kind, "status": value, "reason": reason, "message": message}]


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, reason: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


CASES: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None, State]] = {
    "nothing yet": (None, None, Waiting("schedule_s", "no pod yet")),
    "no node yet": (None, pod(phase="Pending"), Waiting("schedule_s", "the pod has no node yet")),
    "runs": (None, pod({"running": {}}), Running()),
    "exit 0": (None, pod(ended(0, "Completed")), Ended(0, False, "Completed")),
    "exit 3": (None, pod(ended(3, "Error")), Ended(3, False, "Error")),
    "own memory limit": (None, pod(ended(137, "OOMKilled")), Ended(137, True, "OOMKilled")),
    "evicted, though it had exited": (
        None,
        pod(ended(0, "Completed"), phase="Failed", reason="Evicted", message="low on disk"),
        Lost("Evicted: low on disk"),
    ),
    "out of cpu at admission": (
        None,
        pod(phase="Failed", reason="OutOfcpu", message="Node didn't have enough resource"),
        Lost("OutOfcpu: Node didn't have enough resource"),
    ),
    "node rebooted": (None, pod(ended(137, "ContainerStatusUnknown")), Lost("ContainerStatusUnknown")),
    "phase unknown": (None, pod(phase="Unknown"), Lost("NodeLost: the node does not answer")),
    "no shell in the image": (None, pod(ended(128, "StartError")), Lost(f"StartError (image {IMAGE})")),
    "init container failed": (
        None,
        pod(waiting("PodInitializing"), init=ended(1, "Error"), phase="Failed"),
        Lost("init container fetch ended with 1: Error"),
    ),
    "init container still pulls": (
        None,
        pod(waiting("PodInitializing"), init=waiting("ErrImagePull", "pull QPS exceeded"), phase="Pending"),
        Waiting("create_s", "ErrImagePull: pull QPS exceeded"),
    ),
    "being deleted": (
        None,
        pod({"running": {}}, deleted=True),
        Waiting("delete_s", "Deleted: somebody else is deleting the pod"),
    ),
    "killed while deleted": (
        None,
        pod(ended(137, "Error"), deleted=True),
        Lost("Deleted: somebody else deleted the pod"),
    ),
    "job over its deadline": (
        job("FailureTarget", "DeadlineExceeded"),
        pod({"running": {}}, deleted=True),
        Lost("DeadlineExceeded: words"),
    ),
    "the pod knows better than the job": (
        job("Failed", "BackoffLimitExceeded"),
        pod(phase="Failed", reason="Evicted", message="low on memory"),
        Lost("Evicted: low on memory"),
    ),
    "the job's end is seen before the pod's": (
        job("Failed", "BackoffLimitExceeded"),
        pod({"running": {}}),
        Waiting("record_s", "BackoffLimitExceeded: words, and what became of the pod was not seen"),
    ),
    "a job that failed after the agent ended": (
        job("Failed", "BackoffLimitExceeded"),
        pod(ended(3, "Error")),
        Ended(3, False, "Error"),
    ),
    "no room": (
        None,
        pod(phase="Pending", conditions=condition("PodScheduled", "False", "Unschedulable", "0/3 nodes")),
        Waiting("schedule_s", "Unschedulable: 0/3 nodes"),
    ),
    "preempted": (
        None,
        pod({"running": {}}, conditions=condition("DisruptionTarget", "True", "PreemptionByScheduler", "higher")),
        Lost("PreemptionByScheduler: higher"),
    ),
    "secret missing": (
        None,
        pod(waiting("CreateContainerConfigError", 'secret "x" not found')),
        Waiting("config_s", 'CreateContainerConfigError: secret "x" not found'),
    ),
    "image wrong": (
        None,
        pod(waiting("ErrImagePull", "manifest unknown")),
        Lost(f"image {IMAGE}: ErrImagePull: manifest unknown", hopeless=True),
    ),
    "never pulled": (
        None,
        pod(waiting("ErrImageNeverPull", "policy is Never")),
        Lost(f"image {IMAGE}: ErrImageNeverPull: policy is Never", hopeless=True),
    ),
    "registry away": (
        None,
        pod(waiting("ErrImagePull", "dial tcp: i/o timeout")),
        Waiting("create_s", "ErrImagePull: dial tcp: i/o timeout"),
    ),
}


@pytest.mark.parametrize(("of_job", "of_pod", "expected"), CASES.values(), ids=CASES.keys())
def test_read(of_job: dict[str, Any] | None, of_pod: dict[str, Any] | None, expected: State) -> None:
    assert read(of_job, of_pod, False, False) == expected


def test_gone() -> None:
    running = pod({"running": {}})
    assert read(None, running, False, True) == Lost("Gone: the pod is not there any more and left no last word")
    failed = job("Failed", "BackoffLimitExceeded")
    assert read(failed, running, False, True) == Lost("BackoffLimitExceeded: words")
    assert read({"status": {}}, None, True, False) == Lost("Deleted: somebody else deleted the Job")
    assert read({"status": {}}, pod(ended(3, "Error")), True, True) == Ended(3, False, "Error")


def test_what_an_image_is_called_is_not_what_its_registry_says() -> None:
    def told(image: str, message: str) -> State:
        status = {"name": "agent", "image": image, "state": waiting("ErrImagePull", message)}
        return read(None, {"metadata": {}, "status": {"containerStatuses": [status]}}, False, False)

    port = "127.0.0.1:42945/task:1"
    said = f'pull "{port}": pulling from host 127.0.0.1:42945 failed with status code [manifests 1]: 403 Forbidden'
    assert told(port, said) == Lost(f"ErrImagePull: {said}", hopeless=True)
    assert isinstance(told("timeout-task:1", "timeout-task:1: manifest unknown"), Lost)
    assert isinstance(told("r.test/forbidden:1", 'resolve "r.test/forbidden:1": connection refused'), Waiting)
    assert isinstance(told("", "manifest unknown"), Lost)
