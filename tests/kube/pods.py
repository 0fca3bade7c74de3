"""A pod as the kubelet sees it: the handle through which a script tells what becomes of it."""

import asyncio
import uuid
from typing import TYPE_CHECKING
from typing import Any

from tests.kube.objects import Object
from tests.kube.objects import Objects
from tests.kube.objects import now
from tests.kube.objects import suffix

if TYPE_CHECKING:
    from tests.kube.kubelet import Kubelet

PHASES = ("Succeeded", "Failed")


class Pod:
    """Every method raises `ApiError` 404 once the pod is gone; that ends its script."""

    def __init__(self, kubelet: "Kubelet", item: Object) -> None:
        meta = item["metadata"]
        self.uid: str = meta["uid"]
        self.namespace: str = meta["namespace"]
        self.name: str = meta["name"]
        self.spec: Object = item["spec"]
        self.labels: dict[str, str] = meta.get("labels", {})
        self.annotations: dict[str, str] = meta.get("annotations", {})
        self.objects: Objects = kubelet.objects
        self.node_lost = False
        """Nobody is left to end it: it stays Terminating until it is deleted by force."""
        self._kubelet = kubelet

    @property
    def item(self) -> Object:
        return self.objects.get("pods", self.namespace, self.name)

    @property
    def deleting(self) -> bool:
        now_there = self.objects.find("pods", self.namespace, self.name)
        return now_there is not None and "deletionTimestamp" in now_there["metadata"]

    @property
    def grace_s(self) -> float:
        """How long its processes may take to end: nothing once the pod, or the cluster, is gone."""
        now_there = self.objects.find("pods", self.namespace, self.name)
        if now_there is None or self._kubelet.closing:
            return 0
        asked = now_there["metadata"].get("deletionGracePeriodSeconds")
        return float(self.spec["terminationGracePeriodSeconds"] if asked is None else asked)

    def log(self, text: str | bytes, container: str | None = None) -> None:
        """Append to a container's log (the first one's if None)."""
        name = container or self.spec["containers"][0]["name"]
        self._kubelet.logs.of(self.uid, name).write(text.encode() if isinstance(text, str) else text)

    async def schedule(self) -> None:
        """Wait for room on a node, and take it."""
        if self._kubelet.full:
            self.unschedulable("0/1 nodes are available: 1 Too many pods. preemption: 0/1 nodes are available")
        node = await self._kubelet.place(self)

        def placed(pod: Object) -> None:
            pod["spec"]["nodeName"] = node
            status = pod["status"]
            status |= {"hostIP": "127.0.0.1", "startTime": now()}
            _set_condition(status, "PodScheduled", "True")
            _set_condition(status, "Initialized", "True")
            _set_condition(status, "ContainersReady", "False", "ContainersNotReady")
            _set_condition(status, "Ready", "False", "ContainersNotReady")
            for kind in ("initContainers", "containers"):
                if kind in pod["spec"]:
                    rows = [
                        _container_status(c, {"waiting": {"reason": "ContainerCreating"}}) for c in pod["spec"][kind]
                    ]
                    status["containerStatuses" if kind == "containers" else "initContainerStatuses"] = rows

        self._change(placed)

    def unschedulable(self, message: str) -> None:
        self._change(lambda pod: _set_condition(pod["status"], "PodScheduled", "False", "Unschedulable", message))
        self.event("FailedScheduling", message)

    def waiting(self, reason: str, message: str = "", container: str | None = None) -> None:
        """The container (all but the init containers if None) can't start, for this reason."""
        state = {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        self._change(lambda pod: self._states(pod, state, container))

    def running(self, container: str | None = None) -> None:
        """The container (all if None; init containers are then done) has started."""
        began = now()

        def started(pod: Object) -> None:
            if container is None:
                for entry in pod["status"].get("initContainerStatuses", ()):
                    if "terminated" not in entry["state"]:
                        entry["state"] = {"terminated": _terminated(0, "Completed", began)}
            self._states(pod, {"running": {"startedAt": began}}, container)
            if any("running" in entry["state"] for entry in pod["status"]["containerStatuses"]):
                pod["status"] |= {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
                _set_condition(pod["status"], "ContainersReady", "True")
                _set_condition(pod["status"], "Ready", "True")

        self._change(started)

    def exited(self, code: int, reason: str = "", container: str | None = None, message: str = "") -> None:
        """The container (all if None) has ended; when all have, so has the pod. A `code` over 128 is a signal's."""
        reason = reason or ("Error" if code else "Completed")

        def ended(pod: Object) -> None:
            self._states(pod, {"terminated": _terminated(code, reason, None, message)}, container)
            status = pod["status"]
            init = [entry["state"].get("terminated") for entry in status.get("initContainerStatuses", ())]
            main = [entry["state"].get("terminated") for entry in status.get("containerStatuses", ())]
            if any(state and state["exitCode"] for state in init) or (main and all(main)):
                bad = any(state and state["exitCode"] for state in [*init, *main])
                _end(status, "Failed" if bad else "Succeeded")

        self._change(ended)
        self.close_logs(container)

    def failed(self, reason: str, message: str, code: int | None = 137) -> None:
        """The kubelet ended the pod, and says why on the pod itself; `code` is that of containers which ran."""

        def ended(pod: Object) -> None:
            for entry in pod["status"].get("containerStatuses", ()):
                if "running" in entry["state"] and code is not None:
                    entry |= {"state": {"terminated": _terminated(code, "Error")}, "ready": False, "started": False}
            _end(pod["status"], "Failed")
            pod["status"] |= {"reason": reason, "message": message}

        self._change(ended)
        self.close_logs(None)

    def disrupted(self, reason: str, message: str) -> None:
        self._change(lambda pod: _set_condition(pod["status"], "DisruptionTarget", "True", reason, message))

    def event(self, reason: str, message: str) -> None:
        """A Warning about this pod."""
        about = {"kind": "Pod", "apiVersion": "v1", "namespace": self.namespace, "name": self.name, "uid": self.uid}
        self.objects.create("events", warning(about, reason, message), self.namespace)

    def change_status(self, **fields: Any) -> None:
        self._change(lambda pod: pod["status"].update(fields))

    def close_logs(self, container: str | None) -> None:
        for each in self.spec["containers"]:
            if container in (None, each["name"]):
                self._kubelet.logs.of(self.uid, each["name"]).close()

    def _change(self, edit: Any) -> None:
        self.objects.change("pods", self.namespace, self.name, edit)

    @staticmethod
    def _states(pod: Object, state: Object, container: str | None) -> None:
        status = pod["status"]
        for rows in ("containerStatuses", "initContainerStatuses"):
            for entry in status.get(rows, ()):
                every = container is None and rows == "containerStatuses" and "terminated" not in entry["state"]
                if entry["name"] == container or every:
                    began = entry["state"].get("running", {}).get("startedAt")
                    new = dict(state)
                    if began and "terminated" in new:
                        new["terminated"] = new["terminated"] | {"startedAt": began}
                    entry |= {"state": new, "ready": "running" in new, "started": "running" in new}


async def for_ever() -> None:
    await asyncio.Event().wait()


def warning(about: Object, reason: str, message: str) -> Object:
    """The body of an event."""
    return {
        "metadata": {"name": f"{about['name']}.{suffix(16)}"},
        "involvedObject": about,
        "reason": reason,
        "message": message,
        "type": "Warning",
        "count": 1,
        "firstTimestamp": now(),
        "lastTimestamp": now(),
        "source": {"component": "test"},
    }


def _container_status(container: Object, state: Object) -> Object:
    image = container["image"]
    more = {"image": image, "imageID": "", "ready": False, "started": False, "restartCount": 0, "lastState": {}}
    return {"name": container["name"], "state": state} | more


def _terminated(code: int, reason: str, began: str | None = None, message: str = "") -> Object:
    ended = {"exitCode": code, "reason": reason, "startedAt": began or now(), "finishedAt": now()}
    return ended | {"containerID": f"test://{uuid.uuid4().hex}"} | ({"message": message} if message else {})


def _end(status: Object, phase: str) -> None:
    status["phase"] = phase
    reason = "PodCompleted" if phase == "Succeeded" else "PodFailed"
    for kind in ("ContainersReady", "Ready"):
        _set_condition(status, kind, "False", reason)


def _set_condition(status: Object, kind: str, value: str, reason: str = "", message: str = "") -> None:
    row = {"type": kind, "status": value, "lastProbeTime": None, "lastTransitionTime": now()}
    row |= ({"reason": reason} if reason else {}) | ({"message": message} if message else {})
    rows = status.setdefault("conditions", [])
    rows[:] = [*(other for other in rows if other["type"] != kind), row]
