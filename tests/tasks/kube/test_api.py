"""Requests over the real client's transport: pages, refusals in the server's own words, asking again."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from proxy_addons.errors import ConfigError
from tasks.kube import api as module
from tasks.kube.api import Api
from tasks.kube.api import ApiError
from tasks.kube.api import core
from tasks.kube.api import load_configuration
from tasks.kube.api import persist
from tests.kube.cluster import Cluster
from tests.kube.cluster import cluster


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Cluster, Api]]:
    async with cluster() as c:
        api = Api(c.aio_configuration())
        try:
            yield c, api
        finally:
            await api.close()


async def test_a_list_has_all_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAGE", "2")
    async with opened() as (c, api):
        for n in range(5):
            c.objects.create("secrets", {"metadata": {"name": f"s{n}"}}, "openforge")
        items, version = await api.listed(core("openforge", "secrets"), [])
    assert sorted(item["metadata"]["name"] for item in items) == [f"s{n}" for n in range(5)]
    assert version.isdigit()


async def test_a_refusal_in_the_servers_own_words() -> None:
    async with opened() as (_, api):
        with pytest.raises(ApiError) as found:
            await api.ask("GET", core("openforge", "secrets", "none"))
    assert (found.value.status, found.value.reason, found.value.passing) == (404, "NotFound", False)
    assert str(found.value) == '404 NotFound: secrets "none" not found'


async def test_a_gateway_that_answers_something_else() -> None:
    async def bad_gateway(_: web.Request) -> web.Response:
        return web.Response(status=502, text="<html>bad gateway</html>", headers={"Retry-After": "7"})

    app = web.Application()
    app.router.add_get("/{any:.*}", bad_gateway)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    api = Api(configuration)
    with pytest.raises(ApiError, match="502 Bad Gateway: <html>bad gateway") as found:
        await api.ask("GET", core("openforge", "pods"))
    assert (found.value.passing, found.value.retry_after) == (True, 7.0)
    await api.close()
    await runner.cleanup()


async def test_nobody_there() -> None:
    configuration = Configuration()
    configuration.host = "http://127.0.0.1:1"
    api = Api(configuration)
    with pytest.raises(ApiError, match="no answer: GET /api/v1/namespaces/x/pods") as found:
        await api.ask("GET", core("x", "pods"))
    assert (found.value.status, found.value.passing) == (0, True)
    await api.close()


async def test_a_used_up_quota_passes_and_another_403_does_not() -> None:
    assert ApiError(403, "Forbidden", "exceeded quota: q, requested: pods=1").passing
    assert not ApiError(403, "Forbidden", "User cannot create pods").passing


async def test_asked_again_until_it_works_and_told_of_each() -> None:
    errors = [ApiError(500, "a", "", 0.0), ApiError(429, "b", "", 0.1)]
    told: list[str] = []

    async def ask() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    start = time.monotonic()
    assert await persist(ask, 5, lambda error: told.append(error.reason)) == "done"
    assert told == ["a", "b"]
    assert time.monotonic() - start >= 0.1


async def test_not_asked_again_for_ever_nor_without_hope() -> None:
    asked: list[int] = []

    async def ask(status: int) -> None:
        asked.append(status)
        await asyncio.sleep(0.01)
        raise ApiError(status, "x", "", 0.05)

    with pytest.raises(ApiError):
        await persist(lambda: ask(500), 0.3)
    assert 3 <= len(asked) <= 8
    asked.clear()
    with pytest.raises(ApiError):
        await persist(lambda: ask(422), 0.3)
    assert asked == [422]


async def test_no_cluster_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match=r"no cluster to talk to .*set KUBECONFIG"):
        await load_configuration()
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConfigError, match=r"no cluster to talk to \(Service token file does not exist"):
        await load_configuration()
