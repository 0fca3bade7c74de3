"""The run says how to sample; what a harness wanted otherwise is found."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from proxy_addons.conversation import Message
from proxy_addons.conversation import Request
from proxy_addons.live import Limits
from proxy_addons.sampling import not_as_asked
from proxy_addons.sampling import pinned
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving


@pytest.fixture(scope="module")
def tokenizer(toy_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(toy_model))


@pytest.mark.parametrize(
    ("asked", "prompt", "left", "given"),
    [
        (None, 10, None, 100),
        (32_000, 10, None, 100),
        (7, 10, None, 7),
        (None, 950, None, 50),
        (None, 1000, None, 0),
        (None, 10, 3, 3),
        (None, 10, 0, 0),
    ],
)
def test_max_tokens_is_the_least_of_what_is_asked_allowed_left_and_fits(
    asked: int | None, prompt: int, left: int | None, given: int
) -> None:
    request = Request((Message("user", "go"),), max_tokens=asked, temperature=0.0, top_p=0.5)
    sampling = pinned(request, Limits(max_tokens=100, max_model_len=1000, temperature=0.7), prompt, left, (2,))
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (given, 0.7, 1.0)
    assert sampling.stop_token_ids == (2,)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"seed": 0}, ("seed_ignored",)),
        ({"generationConfig": {"seed": 7, "responseMimeType": "application/json"}}, ("seed_ignored", "format_ignored")),
        ({"generationConfig": {"responseMimeType": "text/plain"}}, ()),
        ({"response_format": {"type": "json_object"}}, ("format_ignored",)),
        ({"response_format": {"type": "text"}, "text": {"format": {"type": "text"}, "verbosity": "low"}}, ()),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, ("format_ignored",)),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, ("format_ignored",)),
        ({"parallel_tool_calls": False}, ("parallel_calls_allowed",)),
        ({"parallel_tool_calls": True, "seed": None, "tool_choice": "auto", "text": "x"}, ()),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, ("parallel_calls_allowed",)),
    ],
)
def test_a_wish_about_seed_format_or_number_of_calls_is_found(body: dict[str, Any], found: tuple[str, ...]) -> None:
    assert not_as_asked(Request((Message("user", "go"),)), body, Limits()) == found


async def test_what_the_harness_asks_of_the_sampling_and_does_not_get_is_found(
    toy_model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {
        "temperature": 0,
        "top_p": 0.9,
        "stop": ["###"],
        "top_k": 40,
        "frequency_penalty": 0.5,
        "min_p": 0.1,
    }
    same: dict[str, Any] = {
        "temperature": 0.7,
        "top_p": 1,
        "stop": None,
        "frequency_penalty": 0,
        "repetition_penalty": 1,
    }
    gemini = {"temperature": 0.7, "topK": 64, "topP": 0.95, "stopSequences": ["x"], "presencePenalty": 1}
    async with (
        serving(ScriptedEngine(lambda prompt, n: tokenizer.encode("ok<|im_end|>"))) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register(temperature=0.7)
        async with proxy.client(rollout) as client:
            for number, more in enumerate((asked, same)):
                body = {"model": "policy-v1", "messages": [{"role": "user", "content": str(number)}], **more}
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            contents = [{"role": "user", "parts": [{"text": "go"}]}]
            path, last = "/v1beta/models/policy-v1:generateContent", {"contents": contents, "generationConfig": gemini}
            assert (await client.post(path, json=last)).status_code == 200
        _, rows = await proxy.end(rollout)
    assert rows[0]["findings"] == [
        *("temperature_overridden", "top_p_overridden", "stop_ignored"),
        *("top_k_ignored", "penalty_ignored", "min_p_ignored"),
    ]
    assert rows[1]["findings"] == []
    assert rows[2]["findings"] == ["top_p_overridden", "stop_ignored", "top_k_ignored", "penalty_ignored"]
    for question, row in zip(engine.asked, rows, strict=True):
        sent = question["sampling_params"]
        assert (sent["temperature"], sent["top_p"]) == (0.7, 1.0)
        assert {key: json.loads(row["sampling"])[key] for key in ("temperature", "top_p")} == {
            "temperature": 0.7,
            "top_p": 1.0,
        }
