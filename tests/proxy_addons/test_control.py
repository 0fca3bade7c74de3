"""The orchestrator's side of the engines: what they can do, and which weights they must show."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving


async def test_what_each_engine_can_do_is_told_by_the_control_port(toy_model: Path, tmp_path: Path) -> None:
    async with (
        serving(ScriptedEngine(lambda prompt, n: [72, 73], version=4, max_model_len=100)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        answer = await proxy.control.get("/capability", params={"max_model_len": 128})
        (found,) = answer.json()["engines"]
        assert (found["engine"], found["weight_version"], found["max_model_len"]) == (engine.url, 4, 100)
        assert max(len(body["token_ids"]) for body in engine.asked) == 100
        # From now on its answers are recorded as what they were found to be, and other weights are refused.
        engine.version = 5
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            body = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 529
            engine.version = 4
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        summary, rows = await proxy.end(rollout)
    assert rows[1]["logprob_kind"] == "raw"
    assert "serves weights 5, not 4" in summary["engine_failure"]


async def test_an_engine_that_cannot_be_measured_is_told_in_its_own_words(toy_model: Path, tmp_path: Path) -> None:
    refusal = {"error": {"message": "tool parser not set"}}
    async with (
        serving(ScriptedEngine(lambda prompt, n: web.json_response(refusal, status=400))) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        answer = await proxy.control.get("/capability", params={"max_model_len": 128})
    assert (answer.status_code, answer.json()) == (502, {"error": "policy server answered 400: tool parser not set"})


@pytest.mark.parametrize(
    ("method", "path", "params"),
    [
        ("GET", "/capability", {}),
        ("GET", "/capability", {"max_model_len": "long"}),
        ("POST", "/resume", {"weight_version": "new"}),
    ],
)
async def test_a_number_that_is_none_is_named(
    toy_model: Path, tmp_path: Path, method: str, path: str, params: dict[str, Any]
) -> None:
    async with (
        serving(ScriptedEngine(lambda prompt, n: [72])) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        answer = await proxy.control.request(method, path, params=params)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(("max_model_len: ", "weight_version: "))


async def test_what_a_dead_controller_left_is_ended_and_can_be_registered_again(
    toy_model: Path, tmp_path: Path
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
    async with (
        serving(ScriptedEngine(lambda prompt, n: [72], delay_s=30)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            while not engine.running:
                await asyncio.sleep(0.01)
            failing = asyncio.create_task(proxy.control.get(f"/rollouts/{rollout}/failure"))
            await asyncio.sleep(0.1)
            assert (await proxy.control.delete("/runs/another")).json() == {"abandoned": []}
            assert not failing.done()
            assert (await proxy.control.delete("/runs/r")).json() == {"abandoned": [rollout]}
            assert (await failing).json() == {"reason": None}
            await asyncio.gather(asking, return_exceptions=True)
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 404
        assert not list(tmp_path.glob("*.parquet")), "it was cut off: it is owed, not recorded"
        engine.delay_s = 0.0
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        summary, rows = await proxy.end(rollout)
    assert (summary["complete"], len(rows)) == (True, 1)
