"""What kubectl asks before it does anything: versions, groups, resources, health."""

from collections.abc import Awaitable
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tests.kube.resources import RESOURCES

READ = ["get", "list", "watch"]
WRITE = ["create", "delete", "deletecollection", "patch", "update"]
REVIEW = {"name": "selfsubjectaccessreviews", "singularName": "", "namespaced": False}
REVIEWS = [REVIEW | {"kind": "SelfSubjectAccessReview", "verbs": ["create"]}]
VERSION = {"major": "1", "minor": "35", "gitVersion": "v1.35.0+test", "platform": "linux/amd64"}
UNKNOWN = {"gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": ""}


def routes() -> list[web.RouteDef]:
    groups = [_group("batch"), _group("authorization.k8s.io")]
    return [
        web.get("/readyz", _text),
        web.get("/livez", _text),
        web.get("/healthz", _text),
        web.get("/version", _answer(VERSION | UNKNOWN)),
        web.get("/api", _answer({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        web.get("/apis", _answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})),
        web.get("/api/v1", _answer(_resources("v1", _listed("")))),
        web.get("/apis/batch/v1", _answer(_resources("batch/v1", _listed("batch")))),
        web.get("/apis/authorization.k8s.io/v1", _answer(_resources("authorization.k8s.io/v1", REVIEWS))),
    ]


async def _text(request: web.Request) -> web.Response:
    return web.Response(text="ok")


def _answer(body: dict[str, Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response(body)

    return handler


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resources(group_version: str, listed: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}


def _listed(group: str) -> list[dict[str, Any]]:
    return [
        {
            "name": resource.plural,
            "singularName": resource.kind.lower(),
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": READ + (WRITE if resource.writable else []),
            "shortNames": list(resource.short),
        }
        for resource in RESOURCES.values()
        if resource.group == group
    ]
