import json
from typing import Any

import pytest
from aiohttp import web

from proxy_addons.engine import EngineAway
from proxy_addons.engine import EngineClient
from proxy_addons.engine import Sampling
from proxy_addons.engine import read_completion
from proxy_addons.errors import InfrastructureError
from proxy_addons.records import to_json
from proxy_addons.wire import Connections
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving


def body(ids: list[int], pairs: list[tuple[int, Any]], usage: int | None = None, **choice: Any) -> dict[str, Any]:
    content = [{"token_id": token, "logprob": logprob} for token, logprob in pairs]
    answer = {"choices": [{"token_ids": ids, "logprobs": {"content": content}, **choice}]}
    return answer | ({"usage": {"completion_tokens": usage}} if usage is not None else {})


def test_ids_and_logprobs_are_paired_by_token() -> None:
    read = read_completion(body([5, 6], [(5, -0.5), (6, -0.1)], 2, finish_reason="length"))
    assert (read.token_ids, read.logprobs, read.finish, read.findings) == ((5, 6), (-0.5, -0.1), "length", ())


def test_o24_fewer_ids_than_the_engine_says_it_sampled_is_found() -> None:
    read = read_completion(body([5] * 9, [(5, -0.5)] * 9, usage=24))
    assert "ids_missing" in read.findings


@pytest.mark.parametrize(("ids", "logprobs"), [(5, 6), (6, 5)])
def test_o27_lists_of_different_length_are_never_zipped(ids: int, logprobs: int) -> None:
    read = read_completion(body(list(range(ids)), [(n, -0.5) for n in range(logprobs)]))
    assert "logprobs_misaligned" in read.findings
    assert read.logprobs == (None,) * ids


def test_o27_pairs_with_other_tokens_are_found() -> None:
    assert "logprobs_misaligned" in read_completion(body([1, 2], [(2, -0.5), (1, -0.5)])).findings


@pytest.mark.parametrize("value", [float("-inf"), None, float("nan")])
def test_o59_a_logprob_that_is_no_number_is_null_and_found(value: float | None) -> None:
    read = read_completion(body([1, 2], [(1, -0.5), (2, value)]))
    assert read.logprobs == (-0.5, None)
    assert "logprob_not_finite" in read.findings
    assert json.loads(to_json(list(read.logprobs))) == [-0.5, None]


def test_o58_the_oldest_weight_version_counts_and_a_change_is_found() -> None:
    spans = [{"version": 5, "start": 0, "end": 1}, {"version": 4, "start": 1, "end": 2}]
    read = read_completion(body([1, 2], [(1, -0.5), (2, -0.5)], weight_versions=spans))
    assert (read.weight_version, read.weight_version_last) == (4, 5)
    assert "weight_version_changed" in read.findings


@pytest.mark.parametrize(
    "told", [{}, {"weight_versions": [{"version": None}]}, {"weight_versions": [{"version": "x"}]}]
)
def test_an_engine_that_does_not_say_which_weights_it_has_is_not_taken_to_have_the_first(told: dict[str, Any]) -> None:
    read = read_completion(body([1], [(1, -0.5)], **told))
    assert (read.weight_version, read.weight_version_last) == (None, None)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_an_engine_that_is_unwell_is_told_from_one_that_refuses(status: int) -> None:
    engine = ScriptedEngine(lambda prompt, n: web.json_response({"detail": "why"}, status=status))
    async with serving(engine), Connections() as connections:
        client = EngineClient(engine.url, connections)
        with pytest.raises(EngineAway, match=f"answered {status}: .*why"):
            await client.generate([1], Sampling(4))
        engine.script = lambda prompt, n: web.json_response({"error": {"message": "no such field"}}, status=422)
        with pytest.raises(InfrastructureError, match="answered 422: no such field") as refused:
            await client.generate([1], Sampling(4))
    assert not isinstance(refused.value, EngineAway)


@pytest.mark.parametrize(
    "answer", [b"", b"<html>", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"token_ids": 7}]}']
)
async def test_an_answer_that_holds_no_completion_is_the_engines_fault(answer: bytes) -> None:
    engine = ScriptedEngine(lambda prompt, n: web.Response(body=answer))
    async with serving(engine), Connections() as connections:
        with pytest.raises(EngineAway, match=f"{engine.url}: no completion in its answer"):
            await EngineClient(engine.url, connections).generate([1], Sampling(4))


async def test_the_context_length_is_what_the_engine_says_or_unknown() -> None:
    engine = ScriptedEngine(lambda prompt, n: [1])
    async with serving(engine), Connections() as connections:
        client = EngineClient(engine.url, connections)
        assert await client.max_model_len() is None
        engine.max_model_len = 4096
        assert await client.max_model_len() == 4096
