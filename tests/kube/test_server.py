"""The cluster as a process of its own."""

import asyncio
import json
import signal
import sys

import pytest
from kubernetes.aio import client

from tests.kube.support import NAMESPACE
from tests.kube.support import eventually
from tests.kube.support import make_job


@pytest.mark.slow
async def test_a_process_that_serves_until_it_is_ended() -> None:
    script = json.dumps({"name": "exits", "code": 3})
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.kube.server", "--script", script), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        configuration = client.Configuration()
        configuration.host = (await process.stdout.readline()).decode().strip()
        async with client.ApiClient(configuration) as api:
            await client.BatchV1Api(api).create_namespaced_job(NAMESPACE, make_job("one"))  # type: ignore[arg-type]

            async def failed() -> bool:
                job = await client.BatchV1Api(api).read_namespaced_job("one", NAMESPACE)
                return job.status is not None and job.status.failed == 1

            await eventually(failed)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 5) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
