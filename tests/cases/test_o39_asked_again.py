"""O39: a turn that is asked again, in whatever way, is one turn: the one that the harness went on with."""

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support import speakers
from tests.support.recording import Recording
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from training.rows import build_rows


def engine_of(tokenizer: Any, delay_s: float = 0.0) -> ScriptedEngine:
    replies = count()

    def say(prompt: list[int], number: int) -> list[int]:
        return tokenizer.encode(f"reply {next(replies)}<|im_end|>", add_special_tokens=False)

    return ScriptedEngine(say, delay_s)


async def check(proxy: Recording, rollout: str, statuses: list[str]) -> None:
    """One chain of three turns counts, and of it every sampled token once."""
    _, calls = await proxy.end(rollout)
    assert [call["status"] for call in calls] == statuses
    counted = [call for call in calls if call["status"] == "ok"]
    assert len(counted) == 3
    assert len({call["chain"] for call in counted}) == 1
    rows, _ = build_rows(calls, max_row_tokens=10_000)
    assert [row.calls for row in rows] == [tuple(call["call"] for call in counted)]
    assert rows[0].trained_tokens == sum(len(call["sampled_ids"]) for call in counted)


@pytest.mark.parametrize("again_streams", [True, False])
@pytest.mark.parametrize("went_on_with", [0, 1])
@pytest.mark.parametrize("name", speakers.NAMES)
async def test_o39_the_first_reply_was_lost_or_was_not(
    toy_model: Path, tokenizer: Any, tmp_path: Path, name: str, went_on_with: int, again_streams: bool
) -> None:
    """With `again_streams` False it is what Claude Code does after a broken stream: asks anew without one."""
    async with (
        serving(engine_of(tokenizer)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            history: list[Any] = ["go"]
            history += [await speakers.ask(client, name, history, stream=True), "more"]
            twins = [await speakers.ask(client, name, history, stream=stream) for stream in (True, again_streams)]
            await speakers.ask(client, name, [*history, twins[went_on_with], "and more"], stream=True)
        expected = ["ok", "abandoned", "abandoned", "ok"]
        expected[1 + went_on_with] = "ok"
        await check(proxy, rollout, expected)


@pytest.mark.parametrize("went_on_with", [0, 1])
@pytest.mark.parametrize("name", speakers.NAMES)
async def test_o39_asked_again_while_the_first_is_still_running(
    toy_model: Path, tokenizer: Any, tmp_path: Path, name: str, went_on_with: int
) -> None:
    async with (
        serving(engine_of(tokenizer)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            history: list[Any] = ["go"]
            history += [await speakers.ask(client, name, history), "more"]
            engine.delay_s = 0.5
            first = asyncio.ensure_future(speakers.ask(client, name, history, stream=True))
            while len(engine.asked) < 2:
                await asyncio.sleep(0.01)
            second = await speakers.ask(client, name, history, stream=True)
            twins = [await first, second]
            engine.delay_s = 0
            await speakers.ask(client, name, [*history, twins[went_on_with], "and more"])
        assert speakers.text(name, twins[0]) != speakers.text(name, twins[1])
        expected = ["ok", "abandoned", "abandoned", "ok"]
        expected[1 + went_on_with] = "ok"
        await check(proxy, rollout, expected)


@pytest.mark.parametrize("name", speakers.NAMES)
async def test_o39_the_stream_broke_and_the_harness_asked_without_one(
    toy_model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    speakers.be_impatient(monkeypatch)
    async with (
        serving(engine_of(tokenizer)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            history: list[Any] = ["go"]
            history += [await speakers.ask(client, name, history), "more"]
            engine.delay_s = 8
            body = speakers.body(name, history, stream=True)
            async with client.stream("POST", speakers.path(name, True), json=body) as answer:
                async for _ in answer.aiter_bytes():
                    break  # a sign of life came, and then the line went dead
            while not engine.cancelled:
                await asyncio.sleep(0.02)
            engine.delay_s = 0
            history += [await speakers.ask(client, name, history), "and more"]
            await speakers.ask(client, name, history, stream=True)
        await check(proxy, rollout, ["ok", "error", "ok", "ok"])
