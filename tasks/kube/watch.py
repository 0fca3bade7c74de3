"""One list and one watch of a run's Jobs, and one of its pods, for all rollouts together.

Who waits for a Job subscribes to its name and gets the last state of it and of its pod. What nobody waits for is not
kept, so that memory grows with the rollouts in flight and not with those that were.

A watch that ends is taken up where it was. One that is silent longer than the server's bookmarks allow, or that is
told that its place is too old (410), starts again with a list; what ended in the gap is seen by its absence (case O43).
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from tasks.kube.api import Api
from tasks.kube.api import ApiError
from tasks.kube.api import batch
from tasks.kube.api import core
from tasks.kube.manifest import LAUNCH
from tasks.kube.outcome import is_running

SILENCE_S = 90.0
"""Servers send a bookmark about once a minute."""
_WINDOW_S = "300"
_PAUSE_S = 0.2
_MAX_PAUSE_S = 15.0
_JOB_LABELS = ("batch.kubernetes.io/job-name", "job-name")

log = logging.getLogger(__name__)


@dataclass
class Seen:
    """The last state of the launch `mark`'s Job and pod. `changed` is set at every news, and cleared by who reads it.

    `job_gone` and `pod_gone`: it was there and is not any more; what was last known of it stays. `ran`: the agent's
    container was seen running, also where a later state of the pod does not tell.
    """

    mark: str
    job: dict[str, Any] | None = None
    pod: dict[str, Any] | None = None
    job_gone: bool = False
    pod_gone: bool = False
    ran: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Watch:
    """The states of the Jobs in `namespace` that `selector` finds."""

    def __init__(self, api: Api, namespace: str, selector: str, silence_s: float = SILENCE_S) -> None:
        self._api = api
        self._selector = selector
        self._silence_s = silence_s
        self._paths = {"job": batch(namespace), "pod": core(namespace, "pods")}
        self._seen: dict[str, Seen] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Watch":
        self._tasks = [asyncio.create_task(self._follow(kind)) for kind in self._paths]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextlib.contextmanager
    def subscribe(self, name: str, mark: str) -> Iterator[Seen]:
        """What is seen of the Job `name` from now on; subscribe before it is created.

        Objects of that name from another launch than `mark` are not looked at.
        """
        seen = self._seen[name] = Seen(mark)
        try:
            yield seen
        finally:
            del self._seen[name]

    async def _follow(self, kind: str) -> None:
        version, failures = "", 0
        while True:
            asked: float | None = None
            try:
                if not version:
                    version = await self._list(kind)
                async for version_seen in self._news(kind, version):
                    version, failures = version_seen, 0
                await asyncio.sleep(_PAUSE_S * random.random())
                continue
            except ApiError as error:
                if not error.passing and error.status != 410 and failures == 0:
                    log.warning("the %ss of this run cannot be watched: %s", kind, error)
                asked = error.retry_after
            except Exception:
                # Every rollout of the run waits for this task: it must outlive an object that it cannot read.
                log.exception("the watch of this run's %ss starts again", kind)
            # A silent or broken one may have lost news; a place that is too old certainly has.
            version = ""
            pause = min(_PAUSE_S * 2**failures, _MAX_PAUSE_S)
            failures += 1
            await asyncio.sleep(pause * random.uniform(0.5, 1.0) if asked is None else asked)

    async def _list(self, kind: str) -> str:
        items, version = await self._api.listed(self._paths[kind], [("labelSelector", self._selector)])
        present = set()
        for item in items:
            present.add(_job_name(kind, item))
            self._note(kind, item)
        for name, seen in list(self._seen.items()):
            if name not in present and getattr(seen, kind) is not None:
                self._gone(kind, seen)
        return version

    async def _news(self, kind: str, version: str) -> AsyncIterator[str]:
        query = [
            ("labelSelector", self._selector),
            ("resourceVersion", version),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", _WINDOW_S),
        ]
        async for event in self._api.events(self._paths[kind], query, self._silence_s):
            item = event["object"]
            if event["type"] in ("ADDED", "MODIFIED"):
                self._note(kind, item)
            elif event["type"] == "DELETED":
                self._note(kind, item)
                seen = self._seen.get(_job_name(kind, item))
                if seen and _uid(getattr(seen, kind)) == _uid(item):
                    self._gone(kind, seen)
            yield item["metadata"]["resourceVersion"]

    def _note(self, kind: str, item: dict[str, Any]) -> None:
        seen = self._seen.get(_job_name(kind, item))
        if seen is None or item["metadata"].get("annotations", {}).get(LAUNCH) != seen.mark:
            return
        before = getattr(seen, kind)
        if before and before["metadata"]["resourceVersion"] == item["metadata"]["resourceVersion"]:
            return
        if before and _uid(before) != _uid(item):
            # The Job controller put another pod in its place, or somebody else a Job: the one we waited for is gone.
            self._gone(kind, seen)
            return
        setattr(seen, kind, item)
        seen.ran = seen.ran or (kind == "pod" and is_running(item))
        seen.changed.set()

    def _gone(self, kind: str, seen: Seen) -> None:
        setattr(seen, f"{kind}_gone", True)
        seen.changed.set()


def _job_name(kind: str, item: dict[str, Any]) -> str:
    if kind == "job":
        return item["metadata"]["name"]
    labels = item["metadata"].get("labels", {})
    return next((labels[label] for label in _JOB_LABELS if label in labels), "")


def _uid(item: dict[str, Any] | None) -> str | None:
    return item["metadata"]["uid"] if item else None
