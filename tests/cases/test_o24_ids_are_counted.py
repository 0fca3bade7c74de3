"""O24: an engine that gives fewer ids than it sampled: the turn is kept for reading, not trained, never padded."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from tests.support.toy_model import make_toy_model
from training.rows import build_rows

IDS = [72, 73, 74, 75, 76, 77, 78, 79, 80]


def answer(ids: list[int], sampled: int) -> web.Response:
    content = [{"token_id": i, "logprob": -0.5} for i in ids]
    choice: dict[str, Any] = {"token_ids": ids, "finish_reason": "stop", "logprobs": {"content": content}}
    return web.json_response({"choices": [choice], "usage": {"completion_tokens": sampled}})


@pytest.mark.parametrize(
    ("said", "findings", "trained", "refused"), [(24, ["ids_missing"], 0, {"ids_missing": 1}), (9, [], 9, {})]
)
async def test_o24_ids_are_counted_against_what_the_engine_sampled(
    tmp_path: Path, said: int, findings: list[str], trained: int, refused: dict[str, int]
) -> None:
    model = make_toy_model(tmp_path / "toy")
    async with (
        serving(ScriptedEngine(lambda prompt, n: answer(IDS, said))) as engine,
        recording(model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            body = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
            told = await client.post("/v1/chat/completions", json=body)
        summary, calls = await proxy.end(rollout)
    assert told.status_code == 200
    assert (calls[0]["status"], calls[0]["sampled_ids"], calls[0]["findings"]) == ("ok", IDS, findings)
    assert summary["findings"] == findings
    rows, report = build_rows(calls, max_row_tokens=10_000)
    assert (sum(row.trained_tokens for row in rows), dict(report.refused)) == (trained, refused)
