"""Makes a try's Job and Secret, exactly once, and takes them away again.

A POST that was not answered may have worked. The name is the try's own, so a second POST is refused (409), and what is
there is looked at: it is ours if it carries this launch's mark and nobody is deleting it (case O46). Anything else of
that name is a dead controller's: its pod holds a key that nobody knows any more, so it is deleted, never adopted.
"""

import logging
from typing import Any

from tenacity import RetryCallState

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from tasks.kube import manifest
from tasks.kube.api import Api
from tasks.kube.api import ApiError
from tasks.kube.api import batch
from tasks.kube.api import core
from tasks.kube.api import retrying
from tasks.kube.gate import Gate
from tasks.kube.settings import Settings
from tasks.sandboxes import Spec

DELETE_S = 30.0

log = logging.getLogger(__name__)


async def launch(api: Api, settings: Settings, spec: Spec, mark: str, key: str, gate: Gate) -> dict[str, Any]:
    """Create the Job and its Secret; returns the Job. Raises InfrastructureError, and ConfigError for a refusal."""

    def push_back(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, ApiError) and (error.status == 429 or error.over_quota):
            gate.push_back()

    try:
        job = await _create_job(api, settings, spec, mark, push_back)
        body = manifest.secret(settings, spec, mark, job["metadata"]["uid"], key)
        async for attempt in retrying(settings.bounds.api_s, push_back):
            with attempt:
                await _unless_there(api, core(settings.namespace, "secrets"), body)
    except ApiError as error:
        kind = InfrastructureError if error.passing else ConfigError
        raise kind(f"kubernetes: {spec.name} could not be created: {error}") from error
    return job


async def _create_job(api: Api, settings: Settings, spec: Spec, mark: str, after: Any) -> dict[str, Any]:
    body = manifest.job(settings, spec, mark)
    name = body["metadata"]["name"]
    async for attempt in retrying(settings.bounds.schedule_s, after):
        with attempt:
            try:
                return await api.ask("POST", batch(settings.namespace), body=body)
            except ApiError as error:
                if error.status != 409:
                    raise
            return await _look(api, settings, name, mark)
    raise AssertionError("retrying ends with a result or an error")


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
    async for attempt in retrying(DELETE_S):
        with attempt:
            try:
                await api.ask("DELETE", batch(namespace, name), body=options)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
