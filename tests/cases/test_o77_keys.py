"""O77: wherever a harness shows its key, or a tool prints it, it is in no record, log, error or prompt."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support import speakers
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving

BEARER = "authorization"


async def test_o77_the_key_in_every_place(
    toy_model: Path, tokenizer: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "records"
    answers = []
    async with (
        serving(ScriptedEngine(lambda prompt, n: tokenizer.encode("Hi.<|im_end|>"))) as engine,
        recording(toy_model, engine.url, folder) as proxy,
    ):
        rollout = await proxy.register()
        key = proxy.keys[rollout]
        async with proxy.client(rollout) as client:
            del client.headers[BEARER]
            for name in speakers.NAMES:
                body = speakers.body(name, [f"env says POLICY_API_KEY={key}"]) | {"user": key, "metadata": {key: key}}
                shown: list[tuple[dict[str, str], dict[str, str]]] = [
                    ({BEARER: f"Bearer {key}"}, {}),
                    ({"x-api-key": key}, {}),
                    ({"x-goog-api-key": key, "cookie": f"session={key}"}, {}),
                    ({}, {"key": key}),
                    ({"x-claude-code-agent-id": key, "thread-id": key}, {"key": key, "other": key}),
                ]
                for headers, query in shown:
                    answers.append(await client.post(speakers.path(name), json=body, headers=headers, params=query))
            # In the path, and in requests that are refused.
            bearer = {BEARER: f"Bearer {key}"}
            model = await client.post(
                f"/v1beta/models/{key}:generateContent", json=speakers.body("gemini", ["hi"]), headers=bearer
            )
            answers.append(model)
            refused = [
                await client.post("/v1/messages", json={"messages": [{"role": key}]}, headers=bearer),
                await client.post("/v1/messages", content=f'{{"{key}', headers=bearer),
                await client.post(f"/v1/{key}", json={}, headers=bearer),
                await client.get(f"/{key}", params={"key": key}),
                await client.post("/v1/messages", json={}, headers={BEARER: f"Bearer x{key}"}),
                await client.post(f"http://127.0.0.1:{proxy.port}/{key}", json={}, headers={"x-api-key": key}),
            ]
        before = [p.read_bytes() for p in folder.rglob("*") if p.is_file()]
        summary, rows = await proxy.end(rollout)
    assert [answer.status_code for answer in answers] == [200] * 21
    assert [answer.status_code for answer in refused] == [400, 400, 404, 404, 401, 404]
    assert (summary["calls"], len(rows)) == (21, 21)
    ledger_lines = [content for content in before if b'"intent"' in content]
    assert ledger_lines, "the ledger was looked at while the rollout lived"
    kept = [*before, *(p.read_bytes() for p in folder.rglob("*") if p.is_file())]
    assert all(key.encode() not in content for content in kept)
    # Parquet is compressed: look at the values too.
    assert key not in repr(rows) + repr(summary)
    assert all(key not in tokenizer.decode(asked["token_ids"]) for asked in engine.asked)
    assert all(key not in answer.text + str(answer.headers) for answer in [*answers, *refused])
    printed = capfd.readouterr()
    assert key not in printed.out + printed.err


async def test_o77_an_engine_that_repeats_what_it_was_sent(toy_model: Path, tmp_path: Path) -> None:
    """The key never reaches the engine, so neither its errors nor our reports of them can hold it."""
    async with (
        serving(ScriptedEngine(lambda prompt, n: web.json_response({"error": str(prompt)}, status=500))) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        key = proxy.keys[rollout]
        async with proxy.client(rollout) as client:
            answer = await client.post("/v1/messages", json=speakers.body("anthropic_messages", [f"it is {key}"]))
        summary, _ = await proxy.end(rollout)
    assert answer.status_code == 529
    assert summary["engine_failure"]
    assert key not in answer.text + repr(summary) + repr(engine.asked)
