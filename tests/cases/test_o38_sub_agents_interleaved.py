"""O38 through the proxy: sub-agents that take turns are chains of their own, whatever the harness calls them."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import speakers
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from training.rows import build_rows

AGENTS = {"A": ("You lead.", ("sh", "spawn")), "B": ("You read.", ("read",)), "C": ("You write.", ("write",))}
TURNS = "AB" + "ACBA"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", speakers.NAMES)
async def test_o38_three_agents_three_rows(
    toy_model: Path, tokenizer: Any, tmp_path: Path, name: str, stream: bool
) -> None:
    def say(prompt: list[int], number: int) -> list[int]:
        return tokenizer.encode(f"turn {number}<|im_end|>", add_special_tokens=False)

    histories: dict[str, list[Any]] = {agent: [f"go, {agent}"] for agent in AGENTS}
    async with (
        serving(ScriptedEngine(say)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            for agent in TURNS:
                await _turn(client, name, histories[agent], AGENTS[agent], stream)
        summary, calls = await proxy.end(rollout)
    assert summary["chains"] == 3
    assert [call["chain"] for call in calls] == [{"A": "c0", "B": "c1", "C": "c2"}[agent] for agent in TURNS]
    rows, report = build_rows(calls, max_row_tokens=10_000)
    assert [row.calls for row in rows] == [(0, 2, 5), (1, 4), (3,)]
    assert report.trained_tokens == sum(len(call["sampled_ids"]) for call in calls)
    # What was trained in, the model has really seen: the last call's prompt and sampled tokens are the row.
    assert rows[0].ids == engine.asked[5]["token_ids"] + calls[5]["sampled_ids"]


async def _turn(
    client: httpx.AsyncClient, name: str, history: list[Any], agent: tuple[str, tuple[str, ...]], stream: bool
) -> None:
    system, tools = agent
    history.append(await speakers.ask(client, name, history, system=system, tools=tools, stream=stream))
    history.append("go on")
