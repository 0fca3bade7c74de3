"""O75: failures of the machinery cost what failed and nothing beside it: a call that one replica loses is answered by
another, and where nothing answers, the siblings of the rollout go on."""

import random
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from tests.support.toy_model import make_toy_model

GROUP, TURNS = 8, 5
OK = [72, 73, 2]


async def group_of(proxy: Any) -> tuple[list[int], list[list[dict[str, Any]]]]:
    """Statuses of all calls of a group's rollouts, and their records."""
    statuses, recorded = [], []
    for sample in range(GROUP):
        rollout = await proxy.register(f"t{sample}")
        async with proxy.client(rollout) as client:
            for turn in range(TURNS):
                body = {"model": "m", "messages": [{"role": "user", "content": f"{sample} {turn}"}]}
                statuses.append((await client.post("/v1/chat/completions", json=body)).status_code)
        recorded.append((await proxy.end(rollout))[1])
    return statuses, recorded


async def test_o75_a_replica_that_fails_now_and_then_costs_no_rollout_and_no_turn_is_recorded_twice(
    tmp_path: Path,
) -> None:
    rng = random.Random(0)
    failed: list[int] = []

    def now_and_then(prompt: list[int], number: int) -> list[int] | web.Response:
        if rng.random() < 0.3:
            failed.append(number)
            return web.Response(status=503)
        return OK

    model = make_toy_model(tmp_path / "toy")
    async with (
        serving(ScriptedEngine(now_and_then)) as bad,
        serving(ScriptedEngine(lambda prompt, n: OK)) as good,
        recording(model, bad.url, tmp_path, good.url) as proxy,
    ):
        statuses, recorded = await group_of(proxy)
    assert failed
    assert statuses == [200] * GROUP * TURNS
    assert [[call["status"] for call in calls] for calls in recorded] == [["ok"] * TURNS] * GROUP


async def test_o75_a_rollout_that_fails_takes_no_sibling_along(tmp_path: Path) -> None:
    model = make_toy_model(tmp_path / "toy")
    lost = 2 * TURNS + 1  # a call of the third rollout

    def once(prompt: list[int], number: int) -> list[int] | web.Response:
        return web.Response(status=500) if number == lost else OK

    async with serving(ScriptedEngine(once)) as engine, recording(model, engine.url, tmp_path) as proxy:
        _, recorded = await group_of(proxy)
    errors = [[call["status"] for call in calls].count("error") for calls in recorded]
    assert errors == [0, 0, 1, 0, 0, 0, 0, 0]
