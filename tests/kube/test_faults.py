"""Planned faults, as the real clients meet them."""

import asyncio
import math
import time
from typing import Any

import aiohttp
import pytest
from kubernetes import client as blocking
from kubernetes.aio.client import ApiException

from tests.kube.cluster import Cluster
from tests.kube.support import NAMESPACE
from tests.kube.support import Clients
from tests.kube.support import make_job


def read(c: Cluster) -> Any:
    with blocking.ApiClient(c.configuration()) as api:
        return blocking.CoreV1Api(api).list_namespaced_pod(NAMESPACE)


@pytest.mark.parametrize(("status", "reason"), [(500, "InternalError"), (409, "Conflict"), (429, "TooManyRequests")])
async def test_the_next_request_fails_and_is_not_done(c: Cluster, k: Clients, status: int, reason: str) -> None:
    c.faults.answer("POST", "/jobs", status, retry_after=2 if status == 429 else None)
    await k.core.list_namespaced_pod(NAMESPACE)
    with pytest.raises(ApiException) as raised:
        await k.batch.create_namespaced_job(NAMESPACE, make_job("one"))
    assert raised.value.status == status
    assert reason in str(raised.value.body)
    assert raised.value.headers is not None
    assert raised.value.headers.get("Retry-After") == ("2" if status == 429 else None)
    assert c.objects.all("jobs") == []
    await k.batch.create_namespaced_job(NAMESPACE, make_job("one"))
    assert len(c.objects.all("jobs")) == 1


async def test_a_refusal_in_words_of_ones_own(c: Cluster, k: Clients) -> None:
    c.faults.answer("POST", "/jobs", 403, message='jobs.batch "one" is forbidden: exceeded quota: few')
    with pytest.raises(ApiException) as raised:
        await k.batch.create_namespaced_job(NAMESPACE, make_job("one"))
    assert "exceeded quota: few" in str(raised.value.body)


async def test_the_blocking_client_waits_and_asks_again(c: Cluster) -> None:
    """urllib3 does so by itself for GET: the caller never sees the 429."""
    c.faults.answer("GET", "/pods", 429, retry_after=1)
    began = time.monotonic()
    await asyncio.to_thread(read, c)
    assert time.monotonic() - began >= 1
    assert c.requests["list", "pods"] == 1, "the refused request was never handled"


async def test_a_dropped_post_was_not_done(c: Cluster, k: Clients) -> None:
    c.faults.cut("POST", "/jobs")
    with pytest.raises(aiohttp.ClientError):
        await k.batch.create_namespaced_job(NAMESPACE, make_job("one"))
    assert c.objects.all("jobs") == []


async def test_a_post_that_timed_out_though_it_worked(c: Cluster, k: Clients) -> None:
    c.faults.lose_answer("POST", "/jobs", hold_s=5)
    with pytest.raises(TimeoutError):
        await k.batch.create_namespaced_job(NAMESPACE, make_job("one"), _request_timeout=0.2)
    with pytest.raises(ApiException) as again:
        await k.batch.create_namespaced_job(NAMESPACE, make_job("one"))
    assert again.value.status == 409
    assert len(c.objects.all("jobs")) == 1


async def test_an_answer_lost_by_a_cut(c: Cluster, k: Clients) -> None:
    c.faults.lose_answer("POST", "/jobs")
    with pytest.raises(aiohttp.ClientError):
        await k.batch.create_namespaced_job(NAMESPACE, make_job("one"))
    assert len(c.objects.all("jobs")) == 1


async def test_a_share_of_requests_fails_until_it_is_cleared(c: Cluster, k: Clients) -> None:
    c.faults.answer("GET", "/secrets", 500, times=math.inf, probability=0.5)
    failed = 0
    for _ in range(40):
        try:
            await k.core.list_namespaced_secret(NAMESPACE)
        except ApiException:
            failed += 1
    assert 5 < failed < 35
    c.faults.clear()
    for _ in range(10):
        await k.core.list_namespaced_secret(NAMESPACE)
