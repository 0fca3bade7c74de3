"""O59: -inf, null and NaN from the engine, spelled as Python servers spell them: valid JSON for the harness, null and
a finding in the record, and no such token in a ratio."""

import json
import math
from pathlib import Path

import pytest
from aiohttp import web

from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from tests.support.toy_model import make_toy_model
from training.rows import build_rows

IDS = [72, 73, 74, 75]
LOGPROBS = [-0.1, -math.inf, None, math.nan]


def answer() -> web.Response:
    content = [{"token_id": i, "logprob": p} for i, p in zip(IDS, LOGPROBS, strict=True)]
    choice = {"token_ids": IDS, "finish_reason": "stop", "logprobs": {"content": content}}
    text = json.dumps({"choices": [choice], "usage": {"completion_tokens": 4}})
    assert "-Infinity" in text and "NaN" in text  # which strict readers refuse
    return web.Response(text=text, content_type="application/json")


def refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("stream", [False, True])
async def test_o59_such_a_call_is_answered_recorded_and_not_trained(tmp_path: Path, stream: bool) -> None:
    model = make_toy_model(tmp_path / "toy")
    async with (
        serving(ScriptedEngine(lambda prompt, n: answer())) as engine,
        recording(model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            body = {"model": "m", "messages": [{"role": "user", "content": "go"}], "stream": stream}
            told = await client.post("/v1/chat/completions", json=body)
        summary, calls = await proxy.end(rollout)
    assert told.status_code == 200
    if not stream:
        json.loads(told.text, parse_constant=refuse)
    assert "NaN" not in told.text and "Infinity" not in told.text
    assert calls[0]["sampled_logprobs"] == [pytest.approx(-0.1), None, None, None]
    assert (calls[0]["findings"], summary["engine_failure"]) == (["logprob_not_finite"], None)
    rows, report = build_rows(calls, max_row_tokens=10_000)
    assert (rows, dict(report.refused)) == ([], {"logprob_not_finite": 1})
