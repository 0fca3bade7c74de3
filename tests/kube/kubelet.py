"""The scripted kubelet: schedules pods, lets each one's script tell what becomes of it, and ends those deleted."""

import asyncio
import json
from collections.abc import Awaitable
from collections.abc import Callable

from tests.kube import scripts
from tests.kube.logs import Logs
from tests.kube.objects import Object
from tests.kube.objects import Objects
from tests.kube.pods import PHASES
from tests.kube.pods import Pod
from tests.kube.resources import ApiError

Script = Callable[[Pod], Awaitable[None]]
ANNOTATION = "openforge.test/script"
"""A pod's own script, before the cluster's: {"name": "exits", "code": 3}; names and arguments are in scripts.py."""


class Kubelet:
    def __init__(self, objects: Objects, logs: Logs, script: Script, capacity: int, nodes: int) -> None:
        self.objects, self.logs, self.script = objects, logs, script
        self.errors: list[BaseException] = []
        """What scripts raised that no script should."""
        self.nodes = [f"node-{number}" for number in range(1, nodes + 1)]
        self.closing = False
        self.seen: list[str] = []
        """The uids of all pods, in the order they came."""
        self._room = asyncio.Semaphore(capacity)
        self._placed: dict[str, str] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._pods: dict[str, Pod] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}

    @property
    def full(self) -> bool:
        return self._room.locked()

    async def run(self) -> None:
        with self.objects.subscribe("pods") as queue:
            try:
                while True:
                    change = await queue.get()
                    if change.after is None:
                        self._gone(change.before["metadata"]["uid"])
                    else:
                        self._see(change.after)
            finally:
                self.closing = True
                tasks = [*self._lives.values(), *self._ends.values()]
                for task in tasks:
                    # One that is ending already is left to clean up.
                    if not task.cancelling():
                        task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def place(self, pod: Pod) -> str:
        await self._room.acquire()
        self._placed[pod.uid] = self.nodes[len(self._placed) % len(self.nodes)]
        return self._placed[pod.uid]

    def _see(self, item: Object) -> None:
        uid = item["metadata"]["uid"]
        if uid not in self._pods and "deletionTimestamp" not in item["metadata"]:
            self.seen.append(uid)
            self._pods[uid] = pod = Pod(self, item)
            self._lives[uid] = asyncio.create_task(self._live(pod))
        elif uid in self._pods and "deletionTimestamp" in item["metadata"] and uid not in self._ends:
            self._ends[uid] = asyncio.create_task(self._end(self._pods[uid]))

    def _gone(self, uid: str) -> None:
        self._pods.pop(uid, None)
        if uid in self._lives:
            self._lives[uid].cancel()
        self.logs.drop(uid)

    async def _live(self, pod: Pod) -> None:
        try:
            await self._script(pod)(pod)
        except ApiError as error:
            if error.code != 404:
                self.errors.append(error)
        except Exception as error:
            self.errors.append(error)
        finally:
            if self._placed.pop(pod.uid, None) is not None:
                self._room.release()
            self._lives.pop(pod.uid, None)

    def _script(self, pod: Pod) -> Script:
        if ANNOTATION not in pod.annotations:
            return self.script
        arguments = json.loads(pod.annotations[ANNOTATION])
        script: Script = getattr(scripts, arguments.pop("name"))(**arguments)
        return script

    async def _end(self, pod: Pod) -> None:
        """Stop what runs, say so, and let go of the pod."""
        try:
            if pod.node_lost:
                return
            if (life := self._lives.get(pod.uid)) is not None:
                life.cancel()
                await asyncio.wait([life])
            if pod.item["metadata"]["uid"] == pod.uid:
                if pod.item["status"]["phase"] not in PHASES:
                    pod.exited(143)
                self.objects.delete("pods", pod.namespace, pod.name, grace_s=0)
        except ApiError as error:
            if error.code != 404:
                self.errors.append(error)
        finally:
            self._ends.pop(pod.uid, None)
