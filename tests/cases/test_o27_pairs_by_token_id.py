"""O27: ids and log-probabilities are paired by token id or not at all; a sampled stop token is in the row."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from tests.support.toy_model import make_toy_model
from training.rows import build_rows

STOP = 2
TEXT = [72, 73, 74, 75, 76]


def answer(ids: list[int], pairs: list[int]) -> web.Response:
    content = [{"token_id": i, "logprob": -i / 100} for i in pairs]
    choice: dict[str, Any] = {"token_ids": ids, "finish_reason": "stop", "logprobs": {"content": content}}
    return web.json_response({"choices": [choice], "usage": {"completion_tokens": len(ids)}})


@pytest.mark.parametrize(
    ("ids", "pairs", "whole"),
    [
        (TEXT, [*TEXT, STOP], False),
        ([*TEXT, STOP], TEXT, False),
        (TEXT, TEXT[::-1], False),
        (TEXT, TEXT, True),  # ended by a rule that is no token: what was sampled is what there is
        ([*TEXT, STOP], [*TEXT, STOP], True),
    ],
)
async def test_o27_a_pair_that_cannot_be_made_is_not_trained(
    tmp_path: Path, ids: list[int], pairs: list[int], whole: bool
) -> None:
    model = make_toy_model(tmp_path / "toy")
    async with (
        serving(ScriptedEngine(lambda prompt, n: answer(ids, pairs))) as engine,
        recording(model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            body = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        _, calls = await proxy.end(rollout)
    call = calls[0]
    assert call["sampled_ids"] == ids
    rows, report = build_rows(calls, max_row_tokens=10_000)
    if whole:
        assert call["findings"] == []
        (row,) = rows
        trained = [(i, p) for i, p, m in zip(row.ids, row.logprobs, row.mask, strict=True) if m]
        assert trained == [(i, pytest.approx(-i / 100)) for i in ids]
    else:
        assert call["findings"] == ["logprobs_misaligned"]
        assert call["sampled_logprobs"] == [None] * len(ids)
        assert (rows, dict(report.refused)) == ([], {"logprobs_misaligned": 1})
