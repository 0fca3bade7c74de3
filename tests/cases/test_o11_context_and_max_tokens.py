"""O11: a max_tokens that cannot fit is clamped, both numbers recorded; a prompt that cannot fit is the dialect's own
error, recorded without a turn, and never a made-up success."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from tests.support.toy_model import make_toy_model

CONTEXT = 16_384
KINDS = {"anthropic_messages", "openai_responses", "openai_chat", "gemini"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy_model(tmp_path_factory.mktemp("toy"))


def request(dialect: str, tokens: int, max_tokens: int) -> tuple[str, dict[str, Any]]:
    text = "x" * tokens
    messages = [{"role": "user", "content": text}]
    if dialect == "gemini":
        config = {"maxOutputTokens": max_tokens}
        body: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": text}]}], "generationConfig": config}
        return "/v1beta/models/policy-v1:generateContent", body
    if dialect == "openai_responses":
        return "/v1/responses", {"model": "m", "input": messages, "max_output_tokens": max_tokens}
    path = "/v1/messages" if dialect == "anthropic_messages" else "/v1/chat/completions"
    return path, {"model": "m", "messages": messages, "max_tokens": max_tokens}


@pytest.mark.parametrize("dialect", sorted(KINDS))
async def test_o11_max_tokens_is_clamped_to_what_fits(model: Path, tmp_path: Path, dialect: str) -> None:
    path, body = request(dialect, 10_000, 32_000)
    async with (
        serving(ScriptedEngine(lambda prompt, n: [100, 2])) as engine,
        recording(model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register(max_tokens=32_000, max_model_len=CONTEXT)
        async with proxy.client(rollout) as client:
            assert (await client.post(path, json=body)).status_code == 200
        _, rows = await proxy.end(rollout)
    prompt, given = len(engine.asked[0]["token_ids"]), engine.asked[0]["sampling_params"]["max_tokens"]
    assert 10_000 <= prompt < 10_100
    assert prompt + given == CONTEXT
    sampling = json.loads(rows[0]["sampling"])
    assert (sampling["max_tokens"], sampling["max_tokens_asked"]) == (given, 32_000)
    assert rows[0]["status"] == "ok"


SAYS_TOO_LONG = {
    "anthropic_messages": lambda error: (
        error["type"] == "invalid_request_error" and "prompt is too long" in error["message"]
    ),
    "openai_responses": lambda error: error["code"] == "context_length_exceeded",
    "openai_chat": lambda error: error["code"] == "context_length_exceeded",
    "gemini": lambda error: error["code"] == 400 and error["status"] == "INVALID_ARGUMENT",
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", sorted(KINDS))
async def test_o11_a_prompt_that_cannot_fit_is_an_error_without_a_turn(
    model: Path, tmp_path: Path, dialect: str, stream: bool
) -> None:
    path, body = request(dialect, 20_000, 32_000)
    if stream and dialect == "gemini":
        path = path.replace("generateContent", "streamGenerateContent")
    async with (
        serving(ScriptedEngine(lambda prompt, n: [100, 2])) as engine,
        recording(model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register(max_tokens=32_000, max_model_len=CONTEXT)
        async with proxy.client(rollout) as client:
            answer = await client.post(path, json=body if dialect == "gemini" else {**body, "stream": stream})
        summary, rows = await proxy.end(rollout)
    assert answer.status_code == 400
    assert SAYS_TOO_LONG[dialect](answer.json()["error"])
    assert engine.asked == []
    row = rows[0]
    assert (row["status"], row["http_status"], row["findings"]) == ("error", 400, ["context_length"])
    assert (row["sampled_ids"], row["finish"]) == (None, None)
    assert (summary["complete"], summary["answered"], summary["engine_failure"]) == (True, 0, None)


async def test_o11_an_engine_with_less_room_than_the_run_thinks_is_told_on_as_the_same_error(
    model: Path, tmp_path: Path
) -> None:
    refusal = {"error": {"message": "the prompt has 9000 tokens, the maximum model length is 8192"}}
    path, body = request("openai_chat", 9_000, 100)
    async with (
        serving(ScriptedEngine(lambda prompt, n: web.json_response(refusal, status=400))) as engine,
        recording(model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register(max_model_len=CONTEXT)
        async with proxy.client(rollout) as client:
            answer = await client.post(path, json=body)
        summary, rows = await proxy.end(rollout)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "8192" in answer.json()["error"]["message"]
    assert (rows[0]["findings"], summary["engine_failure"]) == (["context_length"], None)
