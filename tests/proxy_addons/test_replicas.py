"""Several engines behind one proxy: real sockets, scripted engines."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from proxy_addons.conversation import Problem
from proxy_addons.engine import EngineAway
from proxy_addons.engine import EngineClient
from proxy_addons.engine import Sampling
from proxy_addons.errors import InfrastructureError
from proxy_addons.replicas import Replicas
from proxy_addons.wire import Connections
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving

SAMPLING = Sampling(max_tokens=4)
PROBE = list(range(10, 20))


def well(prompt: list[int], number: int) -> list[int]:
    return [7]


def unwell(prompt: list[int], number: int) -> web.Response:
    return web.json_response({"error": {"message": "out of memory"}}, status=500)


@asynccontextmanager
async def replicas_of(*engines: ScriptedEngine) -> AsyncIterator[Replicas]:
    async with AsyncExitStack() as stack:
        connections = await stack.enter_async_context(Connections())
        for engine in engines:
            await stack.enter_async_context(serving(engine))
        replicas = Replicas([EngineClient(engine.url, connections) for engine in engines], PROBE, first_probe_s=0.05)
        stack.push_async_callback(replicas.close)
        yield replicas


async def until(true: Any) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.01)


def calls(engine: ScriptedEngine) -> int:
    """How often the engine was asked for more than a sign of life."""
    return sum(body["token_ids"] != PROBE for body in engine.asked)


async def test_a_rollout_stays_with_one_replica_and_rollouts_spread_over_all() -> None:
    engines = [ScriptedEngine(well) for _ in range(3)]
    async with replicas_of(*engines) as replicas:
        for _ in range(3):
            for rollout in range(30):
                await replicas.generate(f"r-{rollout}", [rollout], SAMPLING)
    homes = [{body["token_ids"][0] for body in engine.asked} for engine in engines]
    assert sum(map(len, homes)) == 30
    assert all(len(home) >= 3 for home in homes)


async def test_a_call_goes_to_another_replica_and_the_failed_one_is_asked_no_more_until_it_is_well() -> None:
    engines = [ScriptedEngine(well), ScriptedEngine(well)]
    async with replicas_of(*engines) as replicas:
        await replicas.generate("r", [1], SAMPLING)
        home, other = engines if engines[0].asked else reversed(engines)
        home.script = unwell
        for _ in range(3):
            assert (await replicas.generate("r", [1], SAMPLING)).token_ids == (7,)
        assert (calls(home), calls(other)) == (2, 3)
        home.script = well
        probes = len(home.asked)
        await until(lambda: len(home.asked) > probes)
        await until(lambda: not replicas._out)
        await replicas.generate("r", [1], SAMPLING)
        assert (calls(home), calls(other)) == (3, 3)


async def test_a_replica_that_is_gone_moves_only_its_own_rollouts() -> None:
    engines = [ScriptedEngine(well) for _ in range(3)]
    async with replicas_of(*engines[:2]) as replicas:
        async with serving(engines[2]), Connections() as connections:
            replicas._clients = [*replicas._clients, EngineClient(engines[2].url, connections)]
            for rollout in range(30):
                await replicas.generate(f"r-{rollout}", [rollout], SAMPLING)
        before = [{body["token_ids"][0] for body in engine.asked} for engine in engines]
        async with Connections() as connections:
            replicas._clients = [*replicas._clients[:2], EngineClient(engines[2].url, connections)]
            for rollout in range(30):
                await replicas.generate(f"r-{rollout}", [rollout], SAMPLING)
            await replicas.close()
        after = [{body["token_ids"][0] for body in engine.asked} for engine in engines[:2]]
    assert before[2]
    assert [home <= now for home, now in zip(before, after, strict=False)] == [True, True]
    assert set().union(*after) == set(range(30))


async def test_tries_are_bounded_and_every_reason_is_told() -> None:
    engines = [ScriptedEngine(unwell) for _ in range(5)]
    async with replicas_of(*engines) as replicas:
        with pytest.raises(InfrastructureError, match="answered 500: out of memory") as failed:
            await replicas.generate("r", [1], SAMPLING)
    assert str(failed.value).count("500") == 3
    assert failed.value.error_class == "InfrastructureError"
    assert sum(map(calls, engines)) == 3


async def test_one_engine_alone_is_asked_once_and_never_left_out() -> None:
    engine = ScriptedEngine(unwell)
    async with replicas_of(engine) as replicas:
        with pytest.raises(InfrastructureError, match="500"):
            await replicas.generate("r", [1], SAMPLING)
        engine.script = well
        assert (await replicas.generate("r", [1], SAMPLING)).token_ids == (7,)
    assert len(engine.asked) == 2


async def test_o63_a_refusal_is_final_and_in_the_engines_own_words() -> None:
    refusal = {"error": {"message": "tool parser not set"}}
    engines = [ScriptedEngine(lambda p, n: web.json_response(refusal, status=400)) for _ in range(2)]
    async with replicas_of(*engines) as replicas:
        with pytest.raises(InfrastructureError, match="answered 400: tool parser not set") as failed:
            await replicas.generate("r", [1], SAMPLING)
        assert not isinstance(failed.value, EngineAway)
        assert not replicas._out
    assert sum(map(calls, engines)) == 1


async def test_a_prompt_that_is_too_long_is_the_callers_problem() -> None:
    refusal = {"error": {"message": "this model's maximum context length is 9"}}
    engines = [ScriptedEngine(lambda p, n: web.json_response(refusal, status=400)) for _ in range(2)]
    async with replicas_of(*engines) as replicas:
        with pytest.raises(Problem) as refused:
            await replicas.generate("r", [1], SAMPLING)
    assert (refused.value.kind, sum(map(calls, engines))) == ("context_length", 1)


async def test_an_answer_without_a_completion_is_tried_elsewhere() -> None:
    engines = [ScriptedEngine(lambda p, n: web.json_response({"choices": []})), ScriptedEngine(well)]
    async with replicas_of(*engines) as replicas:
        for rollout in range(8):
            assert (await replicas.generate(f"r-{rollout}", [1], SAMPLING)).token_ids == (7,)
    assert calls(engines[1]) == 8


async def test_a_connection_that_breaks_in_mid_call_is_tried_elsewhere() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        broken.append(1)
        writer.close()

    broken: list[int] = []
    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    engine = ScriptedEngine(well)
    async with server, serving(engine), Connections() as connections:
        alone = Replicas([EngineClient(url, connections)], PROBE)
        with pytest.raises(InfrastructureError, match=f"{url}: ConnectionError: the server broke off"):
            await alone.generate("r", [1], SAMPLING)
        both = Replicas([EngineClient(url, connections), EngineClient(engine.url, connections)], PROBE)
        for rollout in range(8):
            assert (await both.generate(f"r-{rollout}", [1], SAMPLING)).token_ids == (7,)
        await both.close()
    assert len(broken) == 2
    assert len(engine.asked) == 8


async def test_a_replica_with_other_weights_gives_no_answer() -> None:
    """One that was restarted serves what it started with."""
    engines = [ScriptedEngine(well, version=3), ScriptedEngine(well, version=0)]
    async with replicas_of(*engines) as replicas:
        left_out = await replicas.expect(3)
        assert left_out == {
            engines[1].url: f"policy server at {engines[1].url} serves weights 0, not 3",
        }
        for rollout in range(8):
            assert (await replicas.generate(f"r-{rollout}", [1], SAMPLING)).weight_version == 3
        assert calls(engines[1]) == 0
        engines[1].version = 3
        await until(lambda: not replicas._out)


async def test_a_replica_that_hangs_holds_up_no_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy_addons.replicas.PROBE_S", 0.5)
    engines = [ScriptedEngine(well, version=3), ScriptedEngine(well, version=3, delay_s=15)]
    async with replicas_of(*engines) as replicas:
        left_out = await replicas.expect(3)
    assert list(left_out) == [engines[1].url]
    assert "did not sample one token within 0.5 s" in left_out[engines[1].url]


async def test_weights_that_nobody_serves_are_refused() -> None:
    async with replicas_of(ScriptedEngine(well, version=3), ScriptedEngine(well, version=2)) as replicas:
        with pytest.raises(InfrastructureError, match="serves weights 3, not 4"):
            await replicas.expect(4)


async def test_replicas_that_start_with_different_weights_are_refused() -> None:
    async with replicas_of(ScriptedEngine(well, version=3), ScriptedEngine(well, version=2)) as replicas:
        with pytest.raises(InfrastructureError, match="different weights: versions 2, 3"):
            await replicas.capability(64)


async def test_a_caller_that_goes_away_stops_the_generation_and_no_other_is_started() -> None:
    engines = [ScriptedEngine(well, delay_s=15), ScriptedEngine(well, delay_s=15)]
    async with replicas_of(*engines) as replicas:
        asking = asyncio.create_task(replicas.generate("r", [1], SAMPLING))
        await until(lambda: sum(map(calls, engines)))
        asking.cancel()
        await until(lambda: sum(engine.cancelled for engine in engines))
        assert not replicas._out
    assert sum(map(calls, engines)) == 1
