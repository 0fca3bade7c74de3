"""The orchestrator's side of the engines, what they can do and which weights they must show, and of the rollouts: what
is left of one, and how the next try goes on with it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.recording import Recording
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


def turn(*said: str, tools: bool = True) -> dict[str, Any]:
    """A request whose messages are the user's and the policy's in turns."""
    messages = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(said)]
    sh = {"type": "function", "function": {"name": "sh", "parameters": {"type": "object"}}}
    return {"model": "m", "messages": messages, "tools": [sh] if tools else []}


async def ask(proxy: Recording, rollout: str, *bodies: dict[str, Any]) -> None:
    async with proxy.client(rollout) as client:
        for body in bodies:
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


async def test_a_kept_try_is_gone_on_with_and_its_turns_and_side_calls_count_on(
    toy_model: Path, tmp_path: Path
) -> None:
    """Two turns and two side calls are allowed: the first try had one of those and both of these."""
    async with (
        serving(ScriptedEngine(lambda prompt, n: [72, 73])) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        first = await proxy.register(max_calls=2)
        await ask(proxy, first, turn("go"), turn("a title?", tools=False), turn("another?", tools=False))
        summary, rows = await proxy.end(first, keep="1")
        assert (summary["kept"], summary["complete"], len(rows)) == (True, True, 3)
        said = json.loads(rows[0]["messages_delta"])[-1]["content"]
        again = await proxy.register(try_=1, continues=first, max_calls=2)
        await ask(proxy, again, turn("go", said, "on"), turn("go", said, "and on"), turn("a third?", tools=False))
        summary, more = await proxy.end(again)
    assert (summary["kept"], summary["complete"]) == (False, True)
    assert {row["rollout"] for row in more} == {again}
    assert [row["call"] for row in more] == list(range(6))
    assert [row["sampled_ids"] for row in more[:3]] == [row["sampled_ids"] for row in rows]
    assert (more[3]["parent_call"], more[3]["chain"]) == (0, more[0]["chain"])
    assert ["out_of_calls" in row["findings"] for row in more] == [False] * 4 + [True] * 2
    assert len(engine.asked) == 4
    assert not list(tmp_path.glob(".*.ledger"))


async def test_the_tokens_of_a_kept_try_count_on(toy_model: Path, tmp_path: Path) -> None:
    async with (
        serving(ScriptedEngine(lambda prompt, n: [72, 73])) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        first = await proxy.register(max_total_tokens=2)
        await ask(proxy, first, turn("go"))
        await proxy.end(first, keep="1")
        again = await proxy.register(try_=1, continues=first, max_total_tokens=2)
        await ask(proxy, again, turn("go on"))
        summary, _ = await proxy.end(again)
    assert (summary["out_of_budget"], summary["sampled_tokens"], len(engine.asked)) == ("out_of_tokens", 2, 1)


async def test_a_call_that_the_engine_failed_uses_up_nothing_of_the_policys(toy_model: Path, tmp_path: Path) -> None:
    def script(prompt: list[int], n: int) -> Any:
        return web.Response(status=500) if n == 1 else [72, 73]

    async with (
        serving(ScriptedEngine(script)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        first = await proxy.register(max_calls=2)
        await ask(proxy, first, turn("go"))
        async with proxy.client(first) as client:
            assert (await client.post("/v1/chat/completions", json=turn("on"))).status_code == 529
        await proxy.end(first, keep="1")
        again = await proxy.register(try_=1, continues=first, max_calls=2)
        await ask(proxy, again, turn("on"), turn("and on"))
        _, rows = await proxy.end(again)
    assert [row["findings"] for row in rows] == [[], ["engine_failed"], [], ["out_of_calls"]]


async def test_a_try_that_is_out_of_its_budget_is_not_kept(toy_model: Path, tmp_path: Path) -> None:
    """It is scored as it stands, also where its sandbox was lost afterwards."""
    async with (
        serving(ScriptedEngine(lambda prompt, n: [72, 73])) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register(max_calls=1)
        await ask(proxy, rollout, turn("go"), turn("go on"))
        summary, _ = await proxy.end(rollout, keep="1")
    assert (summary["out_of_budget"], summary["kept"]) == ("out_of_calls", False)
    assert not list(tmp_path.glob(".*.ledger"))


async def test_what_was_not_kept_cannot_be_gone_on_with(toy_model: Path, tmp_path: Path) -> None:
    async def refused(proxy: Recording, continues: str) -> str:
        body = {"run": "r", "epoch": 1, "task": "toy", "sample": 0, "try_": 1, "harness": "test", "key": "k"}
        body |= {"calls_path": str(tmp_path / "x.parquet"), "continues": continues}
        answer = await proxy.control.post("/rollouts", json=body)
        assert answer.status_code == 400
        return str(answer.json()["error"])

    async with (
        serving(ScriptedEngine(lambda prompt, n: [72])) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        first = await proxy.register()
        assert (await proxy.end(first, keep="1"))[0]["kept"] is False, "nothing was answered"
        for keep in ({}, {"keep": "1"}):
            first = await proxy.register()
            await ask(proxy, first, turn("go"))
            assert (await proxy.end(first, **keep))[0]["kept"] is bool(keep)
            if not keep:
                assert await refused(proxy, first) == f"rollout {first} cannot be gone on with: it was not kept here"
        # A try that begins afresh lets the kept one go, and so does the end of its run.
        await proxy.end(await proxy.register(try_=1))
        assert "it was not kept here" in await refused(proxy, first)
        assert not list(tmp_path.glob(".*.ledger"))
        first = await proxy.register()
        await ask(proxy, first, turn("go"))
        await proxy.end(first, keep="1")
        await proxy.control.delete("/runs/r")
        assert "it was not kept here" in await refused(proxy, first)
