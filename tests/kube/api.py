"""The HTTP side of the test cluster: objects in, objects out, in the API server's words."""

import asyncio
import base64
from collections import Counter
from collections.abc import Awaitable
from collections.abc import Callable
from typing import Any

import orjson
import yaml
from aiohttp import web

from tests.kube import discovery
from tests.kube import patches
from tests.kube import quota
from tests.kube import selectors
from tests.kube import validation
from tests.kube.faults import Faults
from tests.kube.logs import Logs
from tests.kube.objects import Object
from tests.kube.objects import Objects
from tests.kube.objects import suffix
from tests.kube.resources import RESOURCES
from tests.kube.resources import ApiError
from tests.kube.resources import Resource
from tests.kube.resources import already_exists
from tests.kube.resources import conflict
from tests.kube.resources import expired
from tests.kube.selectors import Matches
from tests.kube.watches import Watches

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Api:
    """`requests` counts what was asked, as (verb, resource), without what a planned fault took; `denied` is what
    role-based access control refuses, in the same form."""

    def __init__(self, objects: Objects, logs: Logs, faults: Faults) -> None:
        self.objects, self.logs, self.faults = objects, logs, faults
        self.watches = Watches(objects, faults)
        self.requests: Counter[tuple[str, str]] = Counter()
        self.denied: set[tuple[str, str]] = set()
        self._pages: dict[str, list[Object]] = {}

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._boundary], client_max_size=8 * 2**20)
        app.add_routes(discovery.routes())
        app.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self._review)
        for resource in RESOURCES.values():
            base = f"/apis/{resource.group}/v1" if resource.group else "/api/v1"
            place = f"{base}/namespaces/{{namespace}}" if resource.namespaced else base
            many, one = f"{place}/{resource.plural}", f"{place}/{resource.plural}/{{name}}"
            if resource.namespaced:
                app.router.add_get(f"{base}/{resource.plural}", self._on(resource, self._list))
            app.router.add_get(many, self._on(resource, self._list))
            app.router.add_get(one, self._on(resource, self._get))
            app.router.add_get(one + "/status", self._on(resource, self._get))
            app.router.add_put(one + "/status", self._on(resource, self._replace))
            app.router.add_patch(one + "/status", self._on(resource, self._patch))
            if resource.writable:
                app.router.add_post(many, self._on(resource, self._create))
                app.router.add_delete(many, self._on(resource, self._delete_collection))
                app.router.add_put(one, self._on(resource, self._replace))
                app.router.add_patch(one, self._on(resource, self._patch))
                app.router.add_delete(one, self._on(resource, self._delete))
        pod = "/api/v1/namespaces/{namespace}/pods/{name}"
        app.router.add_get(pod + "/log", self._on(RESOURCES["pods"], self._log))
        app.router.add_post(pod + "/eviction", self._on(RESOURCES["pods"], self._evict))
        return app

    @web.middleware
    async def _boundary(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """What goes wrong becomes a Status; planned faults come first."""
        try:
            fault = self.faults.take(request.method, request.path_qs)
            if fault is not None and fault.status is not None:
                raise fault.error()
            if fault is not None and not fault.does_the_work:
                return self._hang_up(request)
            answer = await handler(request)
            if fault is not None:
                await asyncio.sleep(fault.hold_s)
                return self._hang_up(request)
            return answer
        except ApiError as error:
            headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
            return _json(error.body, error.code, headers)
        except web.HTTPException as error:
            missing = ApiError(error.status, error.reason.replace(" ", ""), "the server could not find the resource")
            return _json(missing.body, error.status)

    @staticmethod
    def _hang_up(request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    def _on(
        self, resource: Resource, handler: Callable[[web.Request, Resource], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            verb = VERBS.get(request.method) or ("get" if "name" in request.match_info else "list")
            if verb == "list" and request.query.get("watch") in ("1", "true"):
                verb = "watch"
            self.requests[verb, resource.plural] += 1
            if "dryRun" in request.query and verb != "create":
                raise ApiError(400, "BadRequest", f"the test cluster has no dry run of {verb}")
            if (verb, resource.plural) in self.denied:
                text = f'{resource.qualified} is forbidden: User "test" cannot {verb} resource "{resource.plural}"'
                raise ApiError(403, "Forbidden", text)
            return await handler(request, resource)

        return handle

    async def _list(self, request: web.Request, resource: Resource) -> web.StreamResponse:
        namespace, query = request.match_info.get("namespace"), request.query
        chosen = _selection(request)
        if query.get("watch") in ("1", "true"):
            return await self.watches.serve(request, resource, namespace, chosen)
        if "continue" in query:
            items = self._pages.pop(query["continue"], None)
            version = _version_of_page(query["continue"])
            if items is None or version < self.objects.compacted:
                raise expired(version, self.objects.compacted)
        else:
            items = [item for item in self.objects.all(resource.plural, namespace) if chosen(item)]
            version = self.objects.version
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        limit = int(query.get("limit", 0))
        if limit and len(items) > limit:
            token = base64.urlsafe_b64encode(f"{version}/{suffix(12)}".encode()).decode()
            self._pages[token] = items[limit:]
            meta |= {"continue": token, "remainingItemCount": len(items) - limit}
            items = items[:limit]
        if resource.plural == "resourcequotas":
            items = [quota.with_usage(self.objects, item) for item in items]
        kind = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        return _json(kind | {"metadata": meta, "items": items})

    async def _get(self, request: web.Request, resource: Resource) -> web.Response:
        item = self.objects.get(resource.plural, *_place(request))
        return _json(quota.with_usage(self.objects, item) if resource.plural == "resourcequotas" else item)

    async def _create(self, request: web.Request, resource: Resource) -> web.Response:
        body, namespace = await _body(request), _place(request)[0]
        if "dryRun" in request.query:
            return _json(self._admitted(resource, body, namespace), 201)
        return _json(self.create(resource, body, namespace), 201)

    def create(self, resource: Resource, body: Object, namespace: str) -> Object:
        """Default, check and store; the Job controller comes this way too, so that a quota holds for it."""
        return self.objects.create(resource.plural, self._admitted(resource, body, namespace), namespace)

    def _admitted(self, resource: Resource, body: Object, namespace: str) -> Object:
        validation.complete(resource, body)
        self.objects.get("namespaces", "", namespace)
        if self.objects.find(resource.plural, namespace, body["metadata"]["name"]) is not None:
            raise already_exists(resource, body["metadata"]["name"])
        quota.admit(self.objects, resource, body, namespace)
        return body

    async def _replace(self, request: web.Request, resource: Resource) -> web.Response:
        body = await _body(request)
        return self._write(request, resource, body, lambda _: body)

    async def _patch(self, request: web.Request, resource: Resource) -> web.Response:
        body = await _body(request)
        kind = request.content_type
        if kind == patches.APPLY and self.objects.find(resource.plural, *_place(request)) is None:
            return _json(self.create(resource, body, _place(request)[0]), 201)
        return self._write(request, resource, body, lambda item: patches.apply(kind, item, body))

    def _write(
        self, request: web.Request, resource: Resource, body: Any, make: Callable[[Object], Object]
    ) -> web.Response:
        namespace, name = _place(request)
        status_only = request.path.endswith("/status")

        def edit(item: Object) -> None:
            asked = body.get("metadata", {}).get("resourceVersion") if isinstance(body, dict) else None
            if asked and asked != item["metadata"]["resourceVersion"]:
                text = "the object has been modified; please apply your changes to the latest version and try again"
                raise conflict(resource, name, text)
            made = make(item)
            kept = {key: item["metadata"][key] for key in ("uid", "name", "creationTimestamp", "resourceVersion")}
            parts = {"status"} if status_only else made.keys() - {"status", "kind", "apiVersion"}
            for key in parts & made.keys():
                item[key] = made[key]
            item["metadata"] |= kept
            if resource.plural == "secrets":
                validation.encode(resource, item)

        return _json(self.objects.change(resource.plural, namespace, name, edit))

    async def _delete(self, request: web.Request, resource: Resource) -> web.Response:
        namespace, name = _place(request)
        item = self._remove(resource, self.objects.get(resource.plural, namespace, name), await _body(request), request)
        if resource.plural in ("pods", "resourcequotas") or "deletionTimestamp" in item["metadata"]:
            return _json(item)
        meta = {"name": name, "kind": resource.plural, "uid": item["metadata"]["uid"]}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return _json(status | {"details": meta | ({"group": resource.group} if resource.group else {})})

    async def _delete_collection(self, request: web.Request, resource: Resource) -> web.Response:
        options, chosen = await _body(request), _selection(request)
        items = [item for item in self.objects.all(resource.plural, _place(request)[0]) if chosen(item)]
        for item in items:
            if self.objects.find(resource.plural, item["metadata"]["namespace"], item["metadata"]["name"]):
                self._remove(resource, item, options, request)
        meta = {"resourceVersion": str(self.objects.version)}
        kind = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        return _json(kind | {"metadata": meta, "items": items})

    def _remove(self, resource: Resource, item: Object, options: Object, request: web.Request) -> Object:
        meta = item["metadata"]
        for key, wanted in (options.get("preconditions") or {}).items():
            if wanted and wanted != meta[key]:
                why = f"Precondition failed: {key} in precondition: {wanted}, {key} in object meta: {meta[key]}"
                raise conflict(resource, meta["name"], why)
        grace = options.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
        # Kept by the real API server for old clients: a Job deleted without a word about its pods leaves them behind.
        default = "Orphan" if resource.plural == "jobs" else "Background"
        propagation = options.get("propagationPolicy") or request.query.get("propagationPolicy") or default
        return self.objects.delete(
            resource.plural,
            meta.get("namespace", ""),
            meta["name"],
            grace_s=None if grace is None else int(grace),
            propagation=propagation,
        )

    async def _evict(self, request: web.Request, resource: Resource) -> web.Response:
        namespace, name = _place(request)
        options = (await _body(request)).get("deleteOptions") or {}
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        condition["message"] = "Eviction API: evicting"
        self.objects.change(
            "pods", namespace, name, lambda pod: pod["status"].setdefault("conditions", []).append(condition)
        )
        self._remove(resource, self.objects.get("pods", namespace, name), options, request)
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201)

    async def _log(self, request: web.Request, resource: Resource) -> web.StreamResponse:
        return await self.logs.serve(request, self.objects.get(resource.plural, *_place(request)))

    async def _review(self, request: web.Request) -> web.Response:
        review = await _body(request)
        asked = review["spec"].get("resourceAttributes") or {}
        allowed = (asked.get("verb"), asked.get("resource")) not in self.denied
        return _json(review | {"metadata": {}, "status": {"allowed": allowed}}, 201)


def _json(item: Any, code: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(item), status=code, content_type="application/json", headers=headers)


async def _body(request: web.Request) -> Any:
    """The request's JSON or YAML; {} where there is none. kubectl sends some reviews and evictions as protobuf: 415."""
    text = await request.read()
    if "protobuf" in request.content_type:
        raise ApiError(415, "UnsupportedMediaType", "the test cluster reads JSON and YAML, not protobuf")
    if not text:
        return {}
    try:
        return yaml.safe_load(text) if "yaml" in request.content_type else orjson.loads(text)
    except (ValueError, yaml.YAMLError) as error:
        raise ApiError(400, "BadRequest", f"the object provided is unrecognized: {error}") from error


def _place(request: web.Request) -> tuple[str, str]:
    return request.match_info.get("namespace", ""), request.match_info.get("name", "")


def _selection(request: web.Request) -> Matches:
    by_label = selectors.labels(request.query.get("labelSelector", ""))
    by_field = selectors.fields(request.query.get("fieldSelector", ""))
    return lambda item: by_label(item) and by_field(item)


def _version_of_page(token: str) -> int:
    try:
        return int(base64.urlsafe_b64decode(token).split(b"/")[0])
    except ValueError as error:
        raise ApiError(400, "BadRequest", "continue key is not valid") from error
