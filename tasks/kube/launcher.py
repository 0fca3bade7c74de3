"""Makes a try's Job and Secret, exactly once, and takes them away again.

A POST that was not answered may have worked. The name is the try's own, so a second POST is refused (409), and what is
there is looked at: it is ours if it carries this launch's mark and nobody is deleting it (case O46). Anything else of
that name is a dead controller's: its pod holds a key that nobody knows any more, so it is deleted, never adopted.
"""

import logging
from typing import Any

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from tasks.kube import manifest
from tasks.kube.api import Api
from tasks.kube.api import ApiError
from tasks.kube.api import batch
from tasks.kube.api import core
from tasks.kube.api import persist
from tasks.kube.gate import Gate
from tasks.kube.settings import Settings
from tasks.sandboxes import Spec

DELETE_S = 30.0

log = logging.getLogger(__name__)


async def launch(api: Api, settings: Settings, spec: Spec, mark: str, key: str, gate: Gate) -> None:
    """Create the Job and its Secret. Raises InfrastructureError, and ConfigError for a refusal."""

    def push_back(error: ApiError) -> None:
        if error.status == 429 or error.over_quota:
            gate.push_back()

    body = manifest.job(settings, spec, mark)
    name = body["metadata"]["name"]

    async def create() -> dict[str, Any]:
        try:
            return await api.ask("POST", batch(settings.namespace), body=body)
        except ApiError as error:
            if error.status != 409:
                raise
        return await _look(api, settings, name, mark)

    try:
        job = await persist(create, settings.bounds.schedule_s, push_back)
        secret = manifest.secret(settings, spec, mark, job["metadata"]["uid"], key)
        path = core(settings.namespace, "secrets")
        await persist(lambda: _unless_there(api, path, secret), settings.bounds.api_s, push_back)
    except ApiError as error:
        kind = InfrastructureError if error.passing else ConfigError
        raise kind(f"kubernetes: {spec.name} could not be created: {error}") from error


async def _look(api: Api, settings: Settings, name: str, mark: str) -> dict[str, Any]:
    """The Job of that name if it is this launch's; else it is sent away, and the POST is tried again."""
    try:
        there = await api.ask("GET", batch(settings.namespace, name))
    except ApiError as error:
        if error.status == 404:
            raise ApiError(0, "in the way", f"job {name} went away just now", retry_after=0.2) from error
        raise
    meta = there["metadata"]
    if meta.get("annotations", {}).get(manifest.LAUNCH) == mark and "deletionTimestamp" not in meta:
        return there
    if "deletionTimestamp" not in meta:
        log.warning("deleting job %s, left by a controller that died", name)
        await delete(api, settings.namespace, name, meta["uid"])
    raise ApiError(0, "in the way", f"another launch's job {name} is still being deleted", retry_after=0.5)


async def _unless_there(api: Api, path: str, body: dict[str, Any]) -> None:
    """POST; 409 means that an earlier attempt worked, unless the object is another owner's that is going away."""
    try:
        await api.ask("POST", path, body=body)
    except ApiError as error:
        if error.status != 409:
            raise
        meta = (await api.ask("GET", f"{path}/{body['metadata']['name']}"))["metadata"]
        if meta.get("annotations", {}).get(manifest.LAUNCH) != body["metadata"]["annotations"][manifest.LAUNCH]:
            words = f"another launch's secret {meta['name']} is still being deleted"
            raise ApiError(0, "in the way", words, retry_after=0.5) from error


async def delete(api: Api, namespace: str, name: str, uid: str | None = None) -> None:
    """Delete a Job with its pod and Secret; one that is gone, or another's by now, is left. Raises ApiError."""
    options: dict[str, Any] = {"propagationPolicy": "Background"}
    if uid:
        options["preconditions"] = {"uid": uid}

    async def ask() -> None:
        try:
            await api.ask("DELETE", batch(namespace, name), body=options)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    await persist(ask, DELETE_S)
