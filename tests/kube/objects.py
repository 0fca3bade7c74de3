"""What the test cluster holds: objects in memory, one resource version for all, and the changes that watches replay.

A stored object is never altered: each write puts a new one in its place, so the history and open watches may share it.
"""

import asyncio
import secrets
import uuid
from collections import defaultdict
from collections import deque
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from datetime import datetime
from datetime import timedelta
from typing import Any

import orjson

from tests.kube import resources
from tests.kube.resources import RESOURCES

Object = dict[str, Any]
Key = tuple[str, str, str]
"""Plural, namespace ("" where there is none), name."""
ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
FOREGROUND = "foregroundDeletion"


@dataclass(frozen=True)
class Change:
    version: int
    plural: str
    before: Object | None
    """None: it was created."""
    after: Object | None
    """None: it is gone."""


def now(after_s: float = 0) -> str:
    """A time as the API server writes it: whole seconds."""
    return (datetime.now(UTC) + timedelta(seconds=after_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def copy(item: Object) -> Object:
    duplicate: Object = orjson.loads(orjson.dumps(item))
    return duplicate


def suffix(length: int = 5) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


class Objects:
    """Every method is synchronous: between two awaits of a caller nothing else has happened."""

    def __init__(self, history: int = 20_000) -> None:
        self.version = 1
        self.compacted = 0
        """A watch can't start before this resource version: 410."""
        self._history_length = history
        self._items: dict[str, dict[tuple[str, str], Object]] = {plural: {} for plural in RESOURCES}
        self._history: deque[Change] = deque()
        self._queues: dict[str, set[asyncio.Queue[Any]]] = defaultdict(set)
        self._owned: dict[str, set[Key]] = defaultdict(set)
        self._uids: dict[str, Key] = {}

    # Reading

    def get(self, plural: str, namespace: str, name: str) -> Object:
        """Raises `ApiError` 404."""
        item = self._items[plural].get((namespace, name))
        if item is None:
            raise resources.not_found(RESOURCES[plural], name)
        return item

    def find(self, plural: str, namespace: str, name: str) -> Object | None:
        return self._items[plural].get((namespace, name))

    def all(self, plural: str, namespace: str | None = None) -> list[Object]:
        """In order of namespace and name; of all namespaces if None."""
        items = self._items[plural]
        return [items[key] for key in sorted(items) if namespace is None or key[0] == namespace]

    def owned(self, uid: str, plural: str | None = None) -> list[Object]:
        """The objects that name `uid` as an owner."""
        keys = sorted(key for key in self._owned.get(uid, ()) if plural in (None, key[0]))
        return [self._items[key[0]][key[1:]] for key in keys]

    def changes(self, plural: str, since: int) -> list[Change]:
        """The changes after `since`; raises `ApiError` 410 if they are no longer known."""
        if since < self.compacted:
            raise resources.expired(since, self.compacted)
        return [change for change in self._history if change.version > since and change.plural == plural]

    @contextmanager
    def subscribe(self, *plurals: str) -> Iterator["asyncio.Queue[Any]"]:
        """A queue that gets every `Change` from now on."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        for plural in plurals:
            self._queues[plural].add(queue)
        try:
            yield queue
        finally:
            for plural in plurals:
                self._queues[plural].discard(queue)

    def compact(self) -> None:
        """Forget the history, as etcd does every five minutes."""
        self._history.clear()
        self.compacted = self.version

    # Writing

    def create(self, plural: str, body: Object, namespace: str = "default") -> Object:
        """Store a new object; raises `ApiError` 409 if its name is taken."""
        resource = RESOURCES[plural]
        item = copy(body)
        meta = item.setdefault("metadata", {})
        name = meta["name"]
        namespace = namespace if resource.namespaced else ""
        if (namespace, name) in self._items[plural]:
            raise resources.already_exists(resource, name)
        meta.setdefault("uid", str(uuid.uuid4()))
        meta["creationTimestamp"] = now()
        if namespace:
            meta["namespace"] = namespace
        item |= {"kind": resource.kind, "apiVersion": resource.api_version}
        self._store((plural, namespace, name), None, item)
        owners = [owner["uid"] for owner in meta.get("ownerReferences", ())]
        if owners and not any(uid in self._uids for uid in owners):
            self.delete(plural, namespace, name)
        return item

    def change(self, plural: str, namespace: str, name: str, edit: Callable[[Object], None]) -> Object:
        """Let `edit` alter a copy and store that; an edit that alters nothing is no change."""
        before = self.get(plural, namespace, name)
        after = copy(before)
        edit(after)
        if after == before:
            return before
        if "deletionTimestamp" in after["metadata"] and not after["metadata"].get("finalizers"):
            grace = after["metadata"].get("deletionGracePeriodSeconds")
            if not grace:
                self.remove(plural, namespace, name, last=after)
                return after
        self._store((plural, namespace, name), before, after)
        return after

    def delete(
        self, plural: str, namespace: str, name: str, *, grace_s: int | None = None, propagation: str = "Background"
    ) -> Object:
        """Delete as a client would: with a pod's grace period, finalizers, dependents. Returns what is left."""
        item = self.get(plural, namespace, name)
        finalizers = list(item["metadata"].get("finalizers", ()))
        dependents = self.owned(item["metadata"]["uid"])
        if propagation == "Orphan":
            for dependent in dependents:
                self._disown(dependent, item["metadata"]["uid"])
        if propagation == "Foreground" and dependents and FOREGROUND not in finalizers:
            finalizers.append(FOREGROUND)
        grace = self._grace(item, grace_s) if plural == "pods" else 0
        if not grace and not finalizers:
            return self.remove(plural, namespace, name)

        def mark(after: Object) -> None:
            meta = after["metadata"]
            if "deletionTimestamp" not in meta or grace < meta.get("deletionGracePeriodSeconds", 0):
                meta |= {"deletionTimestamp": now(grace), "deletionGracePeriodSeconds": grace}
            if finalizers:
                meta["finalizers"] = finalizers

        marked = self.change(plural, namespace, name, mark)
        if FOREGROUND in finalizers:
            self._delete_all(dependents)
        return marked

    def remove(self, plural: str, namespace: str, name: str, last: Object | None = None, quiet: bool = False) -> Object:
        """Take the object away whatever holds it (`quiet`: without a change that a watch could tell), and what it
        owns with it."""
        before = self.get(plural, namespace, name)
        item = copy(last or before)
        self._store((plural, namespace, name), before if last is None else last, None, quiet=quiet)
        uid = item["metadata"]["uid"]
        item["metadata"]["resourceVersion"] = str(self.version)
        self._delete_all(self.owned(uid))
        for owner in item["metadata"].get("ownerReferences", ()):
            self._release(owner["uid"])
        return item

    def _store(self, key: Key, before: Object | None, after: Object | None, quiet: bool = False) -> None:
        self.version += 1
        plural = key[0]
        item = after if after is not None else before
        assert item is not None
        meta = item["metadata"]
        if after is not None:
            meta["resourceVersion"] = str(self.version)
            self._items[plural][key[1:]] = after
            self._uids[meta["uid"]] = key
        else:
            del self._items[plural][key[1:]]
            del self._uids[meta["uid"]]
        for owner in (before or {"metadata": {}})["metadata"].get("ownerReferences", ()):
            self._owned[owner["uid"]].discard(key)
            if not self._owned[owner["uid"]]:
                del self._owned[owner["uid"]]
        if after is not None:
            for owner in meta.get("ownerReferences", ()):
                self._owned[owner["uid"]].add(key)
        if quiet:
            return
        change = Change(self.version, plural, before, after)
        self._history.append(change)
        if len(self._history) > self._history_length:
            self.compacted = self._history.popleft().version
        for queue in self._queues[plural]:
            queue.put_nowait(change)

    @staticmethod
    def _grace(pod: Object, asked_s: int | None) -> int:
        ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if ended or not pod["spec"].get("nodeName"):
            return 0
        return int(pod["spec"].get("terminationGracePeriodSeconds", 30) if asked_s is None else asked_s)

    def _delete_all(self, items: list[Object]) -> None:
        for item in items:
            plural = next(p for p, resource in RESOURCES.items() if resource.kind == item["kind"])
            namespace, name = item["metadata"].get("namespace", ""), item["metadata"]["name"]
            others = [o for o in item["metadata"].get("ownerReferences", ()) if o["uid"] in self._uids]
            kept = any("deletionTimestamp" not in self._by_uid(o["uid"])["metadata"] for o in others)
            if self.find(plural, namespace, name) is not None and not kept:
                self.delete(plural, namespace, name)

    def _by_uid(self, uid: str) -> Object:
        key = self._uids[uid]
        return self._items[key[0]][key[1:]]

    def _disown(self, item: Object, uid: str) -> None:
        key = self._uids[item["metadata"]["uid"]]

        def drop(after: Object) -> None:
            after["metadata"]["ownerReferences"] = [
                owner for owner in after["metadata"]["ownerReferences"] if owner["uid"] != uid
            ]

        self.change(*key, drop)

    def _release(self, uid: str) -> None:
        """Let an owner go that was only waiting for what it owned."""
        if uid not in self._uids or self.owned(uid):
            return

        def done(after: Object) -> None:
            after["metadata"]["finalizers"] = [f for f in after["metadata"].get("finalizers", ()) if f != FOREGROUND]

        if FOREGROUND in self._by_uid(uid)["metadata"].get("finalizers", ()):
            self.change(*self._uids[uid], done)
