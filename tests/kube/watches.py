"""Watches: a chunked stream of changes, and everything that goes wrong with one."""

import asyncio
from typing import Any
from typing import Literal

import orjson
from aiohttp import web

from tests.kube.faults import Faults
from tests.kube.objects import Change
from tests.kube.objects import Object
from tests.kube.objects import Objects
from tests.kube.resources import ApiError
from tests.kube.resources import Resource
from tests.kube.resources import expired
from tests.kube.selectors import Matches

End = Literal["silent", "cut", "closed", "expired"]


class Ended(Exception):
    """This watch is over."""


class Watches:
    def __init__(self, objects: Objects, faults: Faults, bookmark_s: float = 10) -> None:
        self.bookmark_s = bookmark_s
        self._objects, self._faults = objects, faults
        self._open: set[asyncio.Queue[Any]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def end(self, how: End) -> None:
        """Let every open watch go silent (the connection stays), be cut in the middle, be closed, or get a 410."""
        for queue in self._open:
            queue.put_nowait(how)

    async def serve(
        self, request: web.Request, resource: Resource, namespace: str | None, chosen: Matches
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        with self._objects.subscribe(resource.plural) as queue:
            self._open.add(queue)
            try:
                await _Watch(self, request, response, resource, namespace, chosen).run(queue)
            except ApiError as error:
                await response.write(_line("ERROR", error.body))
            except (ConnectionError, Ended):
                return response
            finally:
                self._open.discard(queue)
        return response


class _Watch:
    def __init__(
        self,
        watches: Watches,
        request: web.Request,
        response: web.StreamResponse,
        resource: Resource,
        namespace: str | None,
        chosen: Matches,
    ) -> None:
        self._watches, self._request, self._response = watches, request, response
        self._resource, self._namespace, self._chosen = resource, namespace, chosen
        self._objects = watches._objects
        self._plan = watches._faults.take_watch(request.path)
        self._sent = 0

    async def run(self, queue: "asyncio.Queue[Any]") -> None:
        query, clock = self._request.query, asyncio.get_running_loop().time
        closes_at = clock() + float(query.get("timeoutSeconds") or 1800)
        bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
        await self._planned_end()
        await self._first(query.get("resourceVersion", ""), query.get("sendInitialEvents") in ("1", "true"))
        while True:
            left = closes_at - clock()
            try:
                item = await asyncio.wait_for(queue.get(), min(left, self._watches.bookmark_s) if bookmarks else left)
            except TimeoutError:
                if bookmarks:
                    await self._bookmark()
                if clock() >= closes_at:
                    return
                continue
            if isinstance(item, str):
                await self._end(item)
            elif (line := self._event(item)) is not None:
                await self._send(line)

    async def _first(self, version: str, initial: bool) -> None:
        """What is there already, or what has changed since `version`."""
        if version in ("", "0") or initial:
            for item in self._objects.all(self._resource.plural, self._namespace):
                if self._chosen(item):
                    await self._send(_line("ADDED", item))
            if initial:
                await self._bookmark({"k8s.io/initial-events-end": "true"})
            return
        for change in self._objects.changes(self._resource.plural, int(version)):
            if (line := self._event(change)) is not None:
                await self._send(line)

    def _event(self, change: Change) -> bytes | None:
        """The event that this watch's selectors make of a change."""
        before, after = self._seen(change.before), self._seen(change.after)
        if after is not None:
            return _line("ADDED" if before is None else "MODIFIED", after)
        if before is None:
            return None
        last = change.after or before
        return _line("DELETED", last | {"metadata": last["metadata"] | {"resourceVersion": str(change.version)}})

    def _seen(self, item: Object | None) -> Object | None:
        if item is None or self._namespace not in (None, item["metadata"].get("namespace")):
            return None
        return item if self._chosen(item) else None

    async def _send(self, line: bytes) -> None:
        await self._response.write(line)
        self._sent += 1
        await self._planned_end()

    async def _planned_end(self) -> None:
        if self._plan is not None and self._sent >= self._plan.after:
            await self._end(self._plan.how)

    async def _bookmark(self, annotations: dict[str, str] | None = None) -> None:
        meta: dict[str, Any] = {"resourceVersion": str(self._objects.version), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = annotations
        kind = {"kind": self._resource.kind, "apiVersion": self._resource.api_version}
        body = kind | {"metadata": meta}
        if self._resource.plural == "pods":
            body |= {"spec": {"containers": None}, "status": {}}
        await self._response.write(_line("BOOKMARK", body))

    async def _end(self, how: str) -> None:
        if how == "expired":
            raise expired(self._objects.version - 1, self._objects.version)
        if how == "silent":
            await asyncio.Event().wait()
        if how == "cut" and self._request.transport is not None:
            self._request.transport.abort()
        raise Ended


def _line(kind: str, item: Object) -> bytes:
    return orjson.dumps({"type": kind, "object": item}) + b"\n"
