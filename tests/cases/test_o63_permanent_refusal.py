"""O63: an engine that refuses for good is asked once per call and quoted; a stage in which nothing works fails with the
engine's own words, and one bad task among good ones costs only its own rollouts."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy_addons.errors import ConfigError
from tasks.epoch import check_progress
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from tests.support.toy_model import make_toy_model

REFUSAL = {"error": {"message": "tool parser not set", "type": "BadRequestError", "code": 400}}


async def test_o63_asked_once_and_quoted(tmp_path: Path) -> None:
    model = make_toy_model(tmp_path / "toy")
    engines = [ScriptedEngine(lambda prompt, n: web.json_response(REFUSAL, status=400)) for _ in range(2)]
    async with (
        serving(engines[0]),
        serving(engines[1]),
        recording(model, engines[0].url, tmp_path, engines[1].url) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            body = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
            told = await client.post("/v1/chat/completions", json=body)
        summary, calls = await proxy.end(rollout)
    assert told.status_code == 529
    assert len(engines[0].asked) + len(engines[1].asked) == 1
    assert summary["engine_failure"] == "policy server answered 400: tool parser not set"
    assert [(call["status"], call["sampled_ids"]) for call in calls] == [("error", None)]


def ended(reason: str | None) -> dict[str, Any]:
    return {"reason": reason, "error_class": "InfrastructureError" if reason else None}


def test_o63_a_stage_without_any_progress_fails_in_the_engines_words() -> None:
    rows = [ended("policy server answered 400: tool parser not set")] * 3 + [ended("sandbox lost")]
    with pytest.raises(ConfigError, match=r"all 4 rollouts failed; most often: .* 400: tool parser not set"):
        check_progress(rows, "rollout")


def test_o63_a_bad_task_among_good_ones_is_dropped() -> None:
    check_progress([ended("policy server answered 400: tool parser not set")] * 3 + [ended(None)], "rollout")
