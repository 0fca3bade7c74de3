"""Cleaning up after a controller that never came back."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from tasks.kube import manifest
from tasks.kube.api import Api
from tasks.kube.api import batch
from tasks.kube.api import core
from tasks.kube.reap import reap
from tests.kube import scripts
from tests.kube.cluster import Cluster
from tests.kube.cluster import cluster
from tests.kube.support import eventually
from tests.tasks.kube.support import left
from tests.tasks.kube.support import settings
from tests.tasks.kube.support import spec


async def abandon(c: Cluster, folder: Path, run: str, count: int) -> None:
    """Jobs and Secrets of a controller that is not there any more; one Secret has lost its Job."""
    api = Api(c.aio_configuration())
    for sample in range(count):
        one, configured = spec(folder, sample=sample, task=run), settings(run=run)
        job = await api.ask("POST", batch("openforge"), body=manifest.job(configured, one, "mark"))
        body = manifest.secret(configured, one, "mark", job["metadata"]["uid"], "key")
        if sample == 0:
            del body["metadata"]["ownerReferences"]
        await api.ask("POST", core("openforge", "secrets"), body=body)
    await api.close()
    await eventually(lambda: len(c.objects.all("pods", "openforge")) >= count)


async def test_all_of_a_run_and_nothing_else(tmp_path: Path) -> None:
    async with cluster(scripts.exits(after=60)) as c:
        await abandon(c, tmp_path, "night", 3)
        await abandon(c, tmp_path, "day", 1)
        api = Api(c.aio_configuration())
        assert await reap(api, "openforge", "night") == [f"night-e001-night-s0{n}-t0" for n in range(3)]
        assert await reap(api, "openforge", "night") == []
        await api.close()
        assert {name.split("/")[0] for name in left(c)} == {"jobs", "pods", "secrets"}
        assert all("day" in name for name in left(c))


@pytest.mark.parametrize("run", ["", " "])
async def test_an_empty_name_is_refused(run: str) -> None:
    async with cluster() as c:
        api = Api(c.aio_configuration())
        with pytest.raises(ConfigError, match="an empty name would remove every run's"):
            await reap(api, "openforge", run)
        await api.close()
        assert not c.requests


async def test_the_command(tmp_path: Path) -> None:
    async with cluster(scripts.exits(after=60)) as c:
        await abandon(c, tmp_path, "night", 2)
        env = {**os.environ, "KUBECONFIG": str(c.kubeconfig(tmp_path))}
        said = await _command(env, "--run", "night")
        assert said == (0, "removed 2 Jobs of run night\n", "")
        assert await _command(env, "--run", "night") == (0, "nothing of run night is left in openforge\n", "")
        code, _, error = await _command(env, "--run", "")
        assert (code, error) == (1, "reap: name a run; an empty name would remove every run's rollouts\n")
        assert left(c) == []


async def _command(env: dict[str, str], *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "tasks.kube.reap", *arguments]
    done = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr
