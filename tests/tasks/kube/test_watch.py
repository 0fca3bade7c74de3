"""One watch for all: what a subscriber gets to see, and what it does not. What breaks a watch is in case O43."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tasks.kube import manifest
from tasks.kube.api import Api
from tasks.kube.api import batch
from tasks.kube.watch import Watch
from tests.kube import scripts
from tests.kube.cluster import Cluster
from tests.kube.cluster import cluster
from tests.kube.support import eventually
from tests.tasks.kube.support import settings
from tests.tasks.kube.support import spec


@asynccontextmanager
async def watching(run: str = "night") -> AsyncIterator[tuple[Cluster, Api, Watch]]:
    async with cluster(scripts.exits(after=60)) as c:
        api = Api(c.aio_configuration())
        try:
            async with Watch(api, "openforge", manifest.selector(run)) as watch:
                yield c, api, watch
        finally:
            await api.close()


def body(folder: Path, mark: str, run: str = "night", **fields: Any) -> dict[str, Any]:
    return manifest.job(settings(run=run), spec(folder, **fields), mark)


async def test_the_last_state_of_job_and_pod(tmp_path: Path) -> None:
    async with watching() as (_, api, watch):
        with watch.subscribe("night-e001-sum-s00-t0", "mine") as seen:
            await api.ask("POST", batch("openforge"), body=body(tmp_path, "mine"))
            await eventually(lambda: seen.pod and seen.pod["status"].get("phase") == "Running")
            assert seen.job and seen.job["metadata"]["name"] == "night-e001-sum-s00-t0"
            await api.ask(
                "DELETE", batch("openforge", "night-e001-sum-s00-t0"), body={"propagationPolicy": "Background"}
            )
            await eventually(lambda: seen.job_gone and seen.pod_gone)
            assert seen.pod and seen.pod["metadata"]["labels"]["openforge/try"] == "0", "what was last known stays"


async def test_another_launch_of_the_name_is_not_looked_at(tmp_path: Path) -> None:
    async with watching() as (c, api, watch):
        with watch.subscribe("night-e001-sum-s00-t0", "mine") as seen:
            await api.ask("POST", batch("openforge"), body=body(tmp_path, "yesterday's"))
            await eventually(lambda: c.objects.all("pods", "openforge"))
            await asyncio.sleep(0.2)
            assert (seen.job, seen.pod, seen.changed.is_set()) == (None, None, False)


async def test_what_nobody_waits_for_is_not_kept(tmp_path: Path) -> None:
    async with watching() as (c, api, watch):
        for sample in range(5):
            await api.ask("POST", batch("openforge"), body=body(tmp_path, "mine", sample=sample))
        await eventually(lambda: len(c.objects.all("pods", "openforge")) == 5)
        assert not watch._seen


async def test_an_object_that_cannot_be_read_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with watching() as (_, api, watch):
        note, broken = watch._note, [True]

        def once(kind: str, item: dict[str, Any]) -> None:
            if broken:
                broken.pop()
                raise KeyError("metadata")
            note(kind, item)

        monkeypatch.setattr(watch, "_note", once)
        with watch.subscribe("night-e001-sum-s00-t0", "mine") as seen:
            await api.ask("POST", batch("openforge"), body=body(tmp_path, "mine"))
            await eventually(lambda: seen.pod and seen.job)
    assert "starts again" in caplog.text
