"""The Kubernetes API over `kubernetes.aio`: its configuration, credentials and connections, and plain JSON.

The client's models are left out on purpose: a pod as a model costs a millisecond and a hundred kilobytes, and a fleet
of rollouts makes thousands of events a minute.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from collections.abc import Awaitable
from collections.abc import Callable
from functools import partial
from typing import Any
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies
from urllib.request import proxy_bypass

import aiohttp
import orjson
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import ApiClient
from kubernetes.aio.client import Configuration
from tenacity import AsyncRetrying
from tenacity import RetryCallState
from tenacity import retry_if_exception
from tenacity import stop_after_delay
from tenacity import wait_random_exponential

from proxy_addons.errors import ConfigError

Query = list[tuple[str, str]]
T = TypeVar("T")

_LATER = frozenset({408, 429, 500, 502, 503, 504})
_PAGE = "500"
_LIST_S = 30.0
_GATHER_S = 0.05
"""How long news may lie, so that those of many pods are read at one waking."""


class ApiError(Exception):
    """The API server's refusal, in its own words. `status` 0: no answer came, and the request may have worked."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else f"{reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def over_quota(self) -> bool:
        """Whether a ResourceQuota is used up; that ends when other pods end."""
        return self.status == 403 and "exceeded quota" in self.message

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status == 0 or self.status in _LATER or self.over_quota


async def load_configuration() -> Configuration:
    """From KUBECONFIG, else the pod's own service account, else ~/.kube/config. Raises ConfigError."""
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            kube_config.load_incluster_config()
        else:
            await kube_config.load_kube_config(os.environ.get("KUBECONFIG"))
    except kube_config.ConfigException as error:
        raise ConfigError(f"kubernetes: no cluster to talk to ({error}); set KUBECONFIG") from None
    configuration = Configuration.get_default_copy()
    address = urlsplit(configuration.host)
    if not configuration.proxy and not proxy_bypass(address.netloc):
        configuration.proxy = getproxies().get(address.scheme)
    return configuration


def batch(namespace: str, name: str = "") -> str:
    """Path of a namespace's Jobs, or of one."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs" + (f"/{name}" if name else "")


def core(namespace: str, kind: str, name: str = "") -> str:
    """Path of a namespace's `kind` (pods, secrets, events), or of one."""
    return f"/api/v1/namespaces/{namespace}/{kind}" + (f"/{name}" if name else "")


class Api:
    """One connection pool to one cluster."""

    def __init__(self, configuration: Configuration) -> None:
        # Else aiohttp reads ~/.netrc in a thread before every request; the proxy is in the configuration.
        configuration.client_session_kwargs = {"trust_env": False}
        self._client = ApiClient(configuration)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def ask(
        self, method: str, path: str, query: Query | None = None, body: Any = None, timeout_s: float = 30.0
    ) -> dict[str, Any]:
        """One request, one JSON object. Raises ApiError."""
        try:
            response = await self._send(method, path, query, body, aiohttp.ClientTimeout(total=timeout_s))
            data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, "no answer", f"{method} {path}: {error or type(error).__name__}") from error
        if response.status >= 300:
            raise _refusal(response, data)
        return orjson.loads(data)

    async def listed(self, path: str, query: Query) -> tuple[list[dict[str, Any]], str]:
        """All objects of a list, page by page, and the resourceVersion to watch from. Raises ApiError."""
        items: list[dict[str, Any]] = []
        more: Query = []
        while True:
            page = await persist(partial(self.ask, "GET", path, [*query, ("limit", _PAGE), *more]), _LIST_S)
            items += page["items"]
            more = [("continue", page["metadata"].get("continue") or "")]
            if not more[0][1]:
                return items, page["metadata"]["resourceVersion"]

    async def events(self, path: str, query: Query, silence_s: float) -> AsyncIterator[dict[str, Any]]:
        """A watch's events until the server ends it. Raises ApiError, also after `silence_s` without a byte."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=silence_s)
        try:
            response = await self._send("GET", path, [*query, ("watch", "true")], None, timeout)
            if response.status >= 300:
                raise _refusal(response, await response.read())
            async with response:
                rest = b""
                while data := await response.content.readany():
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        yield _event(line)
                    # To be woken for every event costs more than to read it.
                    await asyncio.sleep(_GATHER_S)
                if rest:
                    raise ValueError("it ended in the middle of an event")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiError(0, "watch broken", f"{path}: {error or type(error).__name__}") from error

    async def _send(
        self, method: str, path: str, query: Query | None, body: Any, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        # The body is JSON data already: the client's own pass over it would cost more than all the rest.
        method, url, headers, _, _ = await self._client.param_serialize(
            method=method,
            resource_path=path,
            query_params=query or [],
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        answer = await self._client.call_api(method, url, headers, body, _request_timeout=timeout)
        return answer.response


async def persist(
    ask: Callable[[], Awaitable[T]], bound_s: float, refused: Callable[[ApiError], None] = lambda error: None
) -> T:
    """What `ask` returns; asked again while the refusals are passing ones: Retry-After honoured, else exponential.

    `refused` is told of each. Raises the last ApiError when `bound_s` is over, another one at once.
    """
    first: list[ApiError] = []
    try:
        return await ask()
    except ApiError as error:
        first.append(error)

    async def again() -> T:
        # Tenacity is asked when something went wrong, and told of it; it costs more than a request that went well.
        if first:
            raise first.pop()
        return await ask()

    backoff = wait_random_exponential(multiplier=0.25, max=15)

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after if isinstance(error, ApiError) else None
        return backoff(state) if asked is None else asked

    def passing(error: BaseException) -> bool:
        if not isinstance(error, ApiError) or not error.passing:
            return False
        refused(error)
        return True

    return await AsyncRetrying(
        retry=retry_if_exception(passing), wait=wait, stop=stop_after_delay(bound_s), reraise=True
    )(again)


def _event(line: bytes) -> dict[str, Any]:
    event: dict[str, Any] = orjson.loads(line)
    if event["type"] == "ERROR":
        said = event["object"]
        raise ApiError(int(said.get("code") or 500), str(said.get("reason")), str(said.get("message")))
    return event


def _refusal(response: aiohttp.ClientResponse, data: bytes) -> ApiError:
    """The error that a Status body tells; a gateway in between may send anything else."""
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError:
        said = {"reason": response.reason, "message": data[:200].decode(errors="replace")}
    after = response.headers.get("Retry-After", "")
    seconds = float(after) if after.isdigit() else None
    return ApiError(response.status, str(said.get("reason")), str(said.get("message")), seconds)
