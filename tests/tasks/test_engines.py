"""The engines of a run, for real: the proxy's process, and embedded engines or a scripted one behind it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy_addons import records
from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from proxy_addons.identity import Rollout
from proxy_addons.live import Limits
from tasks.engines import CAPABILITY
from tasks.engines import check_engines
from tasks.engines import publish
from tasks.proxy import Proxy
from tasks.proxy import proxy_python
from tasks.proxy import running_proxy
from tasks.run import ROOT
from tasks.run import model_folder
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from tests.support.toy_model import make_toy_model
from training.policy_server import running_policy_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CONTEXT = 2048


@asynccontextmanager
async def scripted(folder: Path, script: Any) -> AsyncIterator[Proxy]:
    model = make_toy_model(folder / "toy")
    async with (
        serving(ScriptedEngine(script)) as engine,
        running_proxy(proxy_python(ROOT), [engine.url], model, folder / "proxy.log") as proxy,
    ):
        yield proxy


async def test_an_engine_that_training_cannot_use_stops_the_run_with_a_line_per_reason(tmp_path: Path) -> None:
    async with scripted(tmp_path, lambda prompt, n: [72, 73, 74]) as proxy:
        with pytest.raises(ConfigError) as refused:
            await check_engines(proxy, tmp_path, 0.7, CONTEXT)
        # What was found is in the run's folder all the same, for whoever has to mend it.
        (found,) = json.loads((tmp_path / CAPABILITY).read_text())
    assert (found["ids"], found["logprobs"], found["logprob_kind"]) == (True, True, "raw")
    lines = str(refused.value).splitlines()
    assert all(line.startswith(f"engine {found['engine']}: ") for line in lines)
    assert any("kind: raw" in line and "temperature 0.7" in line for line in lines)
    assert any("cuts a prompt that is too long" in line for line in lines)


async def test_new_weights_reach_every_replica_before_any_held_call_goes_on(tmp_path: Path) -> None:
    model = model_folder("tiny")
    async with (
        running_policy_server("embedded", model, tmp_path / "policy-0.log", CONTEXT) as first,
        running_policy_server("embedded", model, tmp_path / "policy-1.log", CONTEXT) as second,
        running_proxy(proxy_python(ROOT), [first.url, second.url], model, tmp_path / "proxy.log") as proxy,
    ):
        found = await check_engines(proxy, tmp_path, 0.7, CONTEXT)
        assert [each.engine for each in found] == [first.url, second.url]
        assert {each.logprob_kind for each in found} == {"processed"}
        assert {each.weight_version for each in found} == {0}
        before = await _calls(proxy, tmp_path, "before")
        await proxy.pause()
        held = asyncio.create_task(_calls(proxy, tmp_path, "held"))
        await asyncio.sleep(0.5)
        assert await publish(proxy, [first, second], model, 1) == {}
        assert (first.version, second.version) == (1, 1)
        after = await held
        assert second.child
        second.child.stop()
        alone = await _calls(proxy, tmp_path, "alone")
        with pytest.raises(InfrastructureError):
            await publish(proxy, [first, second], model, 2)
    assert [row["weight_version"] for row in before] == [0] * 6
    assert [row["weight_version"] for row in after] == [1] * 6
    assert all(row["weight_version"] == row["weight_version_last"] for row in [*before, *after])
    assert [(row["status"], row["weight_version"]) for row in alone] == [("ok", 1)] * 6


async def _calls(proxy: Proxy, folder: Path, name: str) -> list[dict[str, Any]]:
    """The records of six rollouts of one call each, run together."""

    async def one(sample: int) -> dict[str, Any]:
        rollout, key = Rollout("r", 1, name, sample), f"key-of-{name}-{sample}"
        limits = Limits(max_tokens=8, max_model_len=CONTEXT, temperature=0.7)
        path = folder / f"{rollout.id}.parquet"
        await proxy.register(rollout, "test", key, path, limits)
        url = f"http://127.0.0.1:{proxy.address[1]}/r/{rollout.id}/v1/chat/completions"
        body = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.post(url, json=body, headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 200, answer.text
        await proxy.end(rollout)
        (row,) = records.read(str(path), records.CALLS)
        return row

    return list(await asyncio.gather(*map(one, range(6))))
