"""O46: 429 is waited out as long as the server asks; a POST that was not answered makes no second pod."""

import asyncio
import time
from pathlib import Path

from kubernetes.aio import client

from tasks.kube import manifest
from tests.kube import scripts
from tests.kube.pods import Pod
from tests.kube.support import eventually
from tests.tasks.kube.support import backend
from tests.tasks.kube.support import delivers
from tests.tasks.kube.support import settings
from tests.tasks.kube.support import spec


async def test_o46_retry_after_is_honoured(tmp_path: Path) -> None:
    async with backend(delivers()) as (c, sandbox):
        refused = c.faults.answer("POST", "/jobs", 429, retry_after=2)
        start = time.monotonic()
        outcome = await sandbox.run(spec(tmp_path))
        assert (refused.times, c.requests["create", "jobs"]) == (0, 1)
    assert outcome.exit_code == 0
    assert time.monotonic() - start >= 2


async def test_o46_a_post_that_worked_unheard_is_adopted(tmp_path: Path) -> None:
    pods: list[str] = []
    seen: list[dict[str, bytes]] = []

    async def script(pod: Pod) -> None:
        pods.append(pod.name)
        await delivers(seen=seen)(pod)

    async with backend(script) as (c, sandbox):
        c.faults.lose_answer("POST", "/jobs")
        c.faults.lose_answer("POST", "/secrets")
        outcome = await sandbox.run(spec(tmp_path))
        assert c.requests["get", "jobs"] == 1
    assert outcome.exit_code == 0
    assert len(pods) == len(seen) == 1


async def test_o46_errors_of_the_server_are_not_the_rollouts(tmp_path: Path) -> None:
    async with backend(delivers()) as (c, sandbox):
        faults = [c.faults.answer("POST", "/jobs", status) for status in (500, 503, 504)]
        faults += [c.faults.cut("POST", "/secrets", times=2), c.faults.answer("DELETE", "/jobs", 500)]
        outcome = await sandbox.run(spec(tmp_path))
        assert [fault.times for fault in faults] == [0] * 5
    assert outcome.exit_code == 0


async def test_o46_a_dead_controllers_job_is_not_adopted(tmp_path: Path) -> None:
    one = spec(tmp_path)
    async with backend(scripts.in_turn(scripts.exits(after=60), delivers())) as (c, sandbox):
        async with client.ApiClient(c.aio_configuration()) as api:
            old = manifest.job(settings(), one, "a launch of yesterday")
            await client.BatchV1Api(api).create_namespaced_job("openforge", client.V1Job.model_validate(old))
        (pod,) = await eventually(lambda: c.objects.all("pods", "openforge"))
        outcome = await asyncio.wait_for(sandbox.run(one), 15)
        assert pod["metadata"]["uid"] not in [other["metadata"]["uid"] for other in c.objects.all("pods", "openforge")]
    assert outcome.exit_code == 0


async def test_o46_a_used_up_quota_is_waited_for(tmp_path: Path) -> None:
    async with backend(delivers(after=0.3), settings(max_pods=8)) as (c, sandbox):
        c.objects.create(
            "resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"count/jobs.batch": "2"}}}, "openforge"
        )
        outcomes = await asyncio.gather(*(sandbox.run(spec(tmp_path, sample=n)) for n in range(6)))
        assert sandbox._opened and sandbox._opened.gate.limit < 8
    assert [outcome.exit_code for outcome in outcomes] == [0] * 6
