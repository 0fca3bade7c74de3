"""The Job controller: makes the pods of Jobs, counts how they end, ends Jobs by limit, deadline and age."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tests.kube.objects import Change
from tests.kube.objects import Object
from tests.kube.objects import Objects
from tests.kube.objects import copy
from tests.kube.objects import now
from tests.kube.objects import suffix
from tests.kube.pods import PHASES
from tests.kube.pods import warning
from tests.kube.resources import RESOURCES
from tests.kube.resources import ApiError
from tests.kube.resources import Resource

TRACKING = "batch.kubernetes.io/job-tracking"
"""The finalizer that keeps a pod until its end is counted."""


@dataclass
class Clock:
    """Times on the loop's clock, which is finer than the whole seconds that objects carry."""

    began: float | None = None
    ended: float | None = None
    retry_at: float = 0
    timer: asyncio.TimerHandle | None = None


class Jobs:
    """`backoff_s`: the wait before the first pod that replaces a failed one, doubled each time (a real one: 10)."""

    def __init__(
        self, objects: Objects, create: Callable[[Resource, Object, str], Object], backoff_s: float = 0.1
    ) -> None:
        self.backoff_s = backoff_s
        self._objects, self._create = objects, create
        self._clocks: dict[str, Clock] = {}

    async def run(self) -> None:
        """Look at every Job that changed, whose pods changed, or whose time has come."""
        with self._objects.subscribe("jobs", "pods") as queue:
            try:
                while True:
                    seen = await queue.get()
                    namespace, name = seen if isinstance(seen, tuple) else self._job_of(seen)
                    if (job := self._objects.find("jobs", namespace, name)) is not None:
                        self._reconcile(job, queue)
            finally:
                for clock in self._clocks.values():
                    if clock.timer is not None:
                        clock.timer.cancel()

    def _job_of(self, change: Change) -> tuple[str, str]:
        """Which Job to look at; what is over for good is let go on the way."""
        item = change.after or change.before
        assert item is not None
        meta = item["metadata"]
        if item["kind"] == "Job":
            if change.after is None and (clock := self._clocks.pop(meta["uid"], None)) and clock.timer:
                clock.timer.cancel()
            return meta["namespace"], meta["name"]
        owner: str = next((o["name"] for o in meta.get("ownerReferences", ()) if o["kind"] == "Job"), "")
        if self._objects.find("jobs", meta["namespace"], owner) is None:
            self._let_go(item)
        return meta["namespace"], owner

    def _reconcile(self, job: Object, queue: "asyncio.Queue[object]") -> None:
        meta, spec, status = job["metadata"], job["spec"], copy(job["status"])
        clock, loop = self._clocks.setdefault(meta["uid"], Clock()), asyncio.get_running_loop()
        if "deletionTimestamp" in meta:
            for pod in self._pods(job):
                self._let_go(pod)
            return
        due: list[float] = []
        if _ended(status):
            ttl = spec.get("ttlSecondsAfterFinished")
            clock.ended = clock.ended or loop.time()
            if ttl is not None and loop.time() >= clock.ended + ttl:
                self._objects.delete("jobs", meta["namespace"], meta["name"], propagation="Foreground")
                return
            due += [] if ttl is None else [clock.ended + ttl]
        elif not spec["suspend"]:
            status.setdefault("startTime", now())
            clock.began = clock.began or loop.time()
            self._count(job, status, clock, loop.time())
            deadline = clock.began + spec.get("activeDeadlineSeconds", float("inf"))
            self._decide(spec, status, loop.time() >= deadline)
            active = [pod for pod in self._pods(job) if not _over(pod)]
            if (verdict := _verdict(status)) is None:
                due += [deadline, *self._make(job, status, len(active), clock, loop.time())]
                active = [pod for pod in self._pods(job) if not _over(pod)]
            else:
                for pod in active:
                    self._objects.delete("pods", meta["namespace"], pod["metadata"]["name"])
                active = []
            ending = [pod for pod in self._pods(job) if _over(pod) and pod["status"]["phase"] not in PHASES]
            ready = sum(pod["status"]["phase"] == "Running" for pod in active)
            status |= {"active": len(active), "ready": ready, "terminating": len(ending)}
            if verdict is not None and not ending:
                _end(status, verdict)
        self._objects.change("jobs", meta["namespace"], meta["name"], lambda item: item.update(status=status))
        if clock.timer is not None:
            clock.timer.cancel()
        if min(due, default=float("inf")) < float("inf"):
            clock.timer = loop.call_at(min(due), queue.put_nowait, (meta["namespace"], meta["name"]))

    def _pods(self, job: Object) -> list[Object]:
        return self._objects.owned(job["metadata"]["uid"], "pods")

    def _count(self, job: Object, status: Object, clock: Clock, time: float) -> None:
        """Add the pods that ended, each once: its finalizer says that it has not been counted."""
        for pod in self._pods(job):
            if _over(pod) and TRACKING in pod["metadata"].get("finalizers", ()):
                kind = "succeeded" if pod["status"]["phase"] == "Succeeded" else "failed"
                status[kind] = status.get(kind, 0) + 1
                if kind == "failed":
                    clock.retry_at = time + self.backoff_s * 2 ** (status["failed"] - 1)
                self._let_go(pod)

    @staticmethod
    def _decide(spec: Object, status: Object, late: bool) -> None:
        if _verdict(status) is not None:
            return
        if status.get("failed", 0) > spec["backoffLimit"]:
            _add(status, "FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        elif status.get("succeeded", 0) >= spec["completions"]:
            _add(status, "SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods")
        elif late:
            _add(status, "FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline")

    def _make(self, job: Object, status: Object, active: int, clock: Clock, time: float) -> list[float]:
        """Create the pods that are missing; returns when to try again. A refusal (quota) is an event of the Job."""
        spec, meta = job["spec"], job["metadata"]
        missing = min(spec["parallelism"], spec["completions"] - status.get("succeeded", 0)) - active
        if missing > 0 and time < clock.retry_at:
            return [clock.retry_at]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
        try:
            for _ in range(missing):
                self._create(RESOURCES["pods"], _pod(spec["template"], owner), meta["namespace"])
        except ApiError as error:
            about = owner | {"namespace": meta["namespace"]}
            event = warning(about, "FailedCreate", f"Error creating: {error.message}")
            self._objects.create("events", event, meta["namespace"])
            clock.retry_at = time + self.backoff_s
            return [clock.retry_at]
        return []

    def _let_go(self, pod: Object) -> None:
        meta = pod["metadata"]
        now_there = self._objects.find("pods", meta["namespace"], meta["name"])
        if now_there is not None and TRACKING in now_there["metadata"].get("finalizers", ()):
            self._objects.change(
                "pods", meta["namespace"], meta["name"], lambda item: item["metadata"]["finalizers"].remove(TRACKING)
            )


def _pod(template: Object, owner: Object) -> Object:
    pod = copy(template) | {"kind": "Pod"}
    prefix = f"{owner['name'][:57]}-"
    meta = pod.setdefault("metadata", {}) | {"generateName": prefix, "name": prefix + suffix()}
    meta |= {"finalizers": [TRACKING]}
    pod["metadata"] = meta | {"ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": True}]}
    return pod


def _over(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"] or pod["status"]["phase"] in PHASES


def _condition(status: Object, *kinds: str) -> Object | None:
    return next((row for row in status.get("conditions", ()) if row["type"] in kinds), None)


def _verdict(status: Object) -> Object | None:
    return _condition(status, "FailureTarget", "SuccessCriteriaMet")


def _ended(status: Object) -> bool:
    return _condition(status, "Complete", "Failed") is not None


def _add(status: Object, kind: str, reason: str, message: str) -> None:
    row = {"type": kind, "status": "True", "reason": reason, "message": message}
    status.setdefault("conditions", []).append(row | {"lastProbeTime": now(), "lastTransitionTime": now()})


def _end(status: Object, verdict: Object) -> None:
    """The last condition comes when no pod is left that runs."""
    good = verdict["type"] == "SuccessCriteriaMet"
    _add(status, "Complete" if good else "Failed", verdict["reason"], verdict["message"])
    if good:
        status["completionTime"] = now()
