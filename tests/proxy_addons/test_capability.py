"""Each defect of an engine is found by real completions, and training refuses it with one line."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from proxy_addons.capability import Capability
from proxy_addons.capability import measure
from proxy_addons.capability import why_untrainable
from proxy_addons.engine import EngineClient
from proxy_addons.errors import InfrastructureError
from proxy_addons.wire import Connections
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving

PROMPT = list(range(100, 120))
LIMIT = 200
VOCAB = 40

GOOD = Capability(
    engine="x",
    ids=True,
    logprobs=True,
    logprob_kind="processed",
    max_tokens="honoured",
    large_max_tokens="clamped",
    stop_token="included",
    finish_reasons="right",
    long_prompt="refused",
    weight_version=3,
    max_model_len=None,
)


@dataclass
class Policy:
    """A policy of `VOCAB` tokens that depends on the last token only, sampled from as an engine should, or with a
    defect: `spoil` changes the answer, `flags` how it is made."""

    flags: frozenset[str] = frozenset()
    spoil: Callable[[dict[str, Any]], None] | None = None
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def __call__(self, body: dict[str, Any]) -> web.Response:
        params, prompt = body["sampling_params"], body["token_ids"]
        if len(prompt) >= LIMIT and "truncates" not in self.flags:
            text = "bad prompt" if "vague" in self.flags else f"the maximum context length is {LIMIT}"
            return web.json_response({"error": {"message": text}}, status=400)
        prompt = prompt[: LIMIT - 1]
        room = LIMIT - len(prompt)
        if params["max_tokens"] > room and "strict" in self.flags:
            return web.json_response({"error": {"message": "max_tokens is too large"}}, status=400)
        wanted = min(params["max_tokens"], room) + (2 if "talkative" in self.flags else 0)
        ids: list[int] = []
        logprobs: list[float] = []
        finish, last = "length", prompt[-1]
        while len(ids) < wanted:
            last, logprob = self._next(last, params["temperature"])
            ids.append(last)
            logprobs.append(logprob)
            if last in params["stop_token_ids"] and "deaf" not in self.flags:
                finish = "stop"
                break
        if finish == "stop" and "swallows" in self.flags:
            del ids[-1], logprobs[-1]
        choice: dict[str, Any] = {
            "token_ids": ids,
            "finish_reason": finish,
            "logprobs": {"content": [{"token_id": i, "logprob": p} for i, p in zip(ids, logprobs, strict=True)]},
            "weight_versions": [{"version": "3", "start": 0, "end": len(ids)}],
        }
        answer = {"choices": [choice], "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}}
        if self.spoil is not None:
            self.spoil(answer)
        return web.json_response(answer)

    def _next(self, last: int, temperature: float) -> tuple[int, float]:
        scores = [random.Random(last * VOCAB + token).gauss(0, 1) for token in range(VOCAB)]
        if "certain" in self.flags:
            scores[last * 7 % VOCAB] = 1e3
        draw_at = 1.0 if "hot" in self.flags else temperature
        told_at = 1.0 if "raw" in self.flags else temperature or 1.0
        told = _log_softmax([score / told_at for score in scores])
        if draw_at == 0:
            token = max(range(VOCAB), key=scores.__getitem__)
        else:
            weights = [math.exp(p) for p in _log_softmax([score / draw_at for score in scores])]
            token = self.rng.choices(range(VOCAB), weights)[0]
        return token, told[token]


def _log_softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    total = top + math.log(sum(math.exp(score - top) for score in scores))
    return [score - total for score in scores]


def choice(answer: dict[str, Any]) -> dict[str, Any]:
    return answer["choices"][0]


def drop_ids(answer: dict[str, Any]) -> None:
    """What a tool parser holds back is missing from the ids (case O24)."""
    choice(answer)["token_ids"] = choice(answer)["token_ids"][:-1]


def drop_a_logprob(answer: dict[str, Any]) -> None:
    """One list has the stop token, the other not (case O27)."""
    choice(answer)["logprobs"]["content"].pop()


def no_number(answer: dict[str, Any]) -> None:
    choice(answer)["logprobs"]["content"][0]["logprob"] = None


def always_stop(answer: dict[str, Any]) -> None:
    choice(answer)["finish_reason"] = "stop"


def no_version(answer: dict[str, Any]) -> None:
    del choice(answer)["weight_versions"]


def scripted(answer: dict[str, Any]) -> None:
    choice(answer)["logprob_kind"] = "scripted"


async def measured(policy: Policy) -> tuple[Capability, EngineClient]:
    engine = ScriptedEngine(lambda prompt, n: policy(engine.asked[n]))
    async with serving(engine), Connections() as connections:
        client = EngineClient(engine.url, connections)
        return replace(await measure(client, PROMPT, LIMIT), engine="x"), client


async def test_an_engine_without_a_defect_is_found_good() -> None:
    found, client = await measured(Policy())
    assert found == GOOD
    assert client.logprob_kind == "processed"
    assert why_untrainable(found, 0.7, LIMIT) == []


@pytest.mark.parametrize(
    ("policy", "differs", "said"),
    [
        (Policy(spoil=drop_ids), {"ids": False, "logprobs": False}, "id of every token"),
        (Policy(spoil=drop_a_logprob), {"logprobs": False}, "own log-probability"),
        (Policy(spoil=no_number), {"logprobs": False}, "own log-probability"),
        (Policy(frozenset({"raw"})), {"logprob_kind": "raw"}, "kind: raw"),
        (Policy(frozenset({"talkative"})), {"max_tokens": "ignored"}, "more tokens than max_tokens"),
        (Policy(frozenset({"swallows"})), {"stop_token": "left_out"}, "leaves the stop token out"),
        (Policy(frozenset({"deaf"})), {"stop_token": "ignored"}, "goes on after a stop token"),
        (Policy(spoil=always_stop), {"finish_reasons": "wrong"}, "cut from one that ended"),
        (Policy(frozenset({"truncates"})), {"long_prompt": "truncated"}, "cuts a prompt that is too long"),
        (Policy(frozenset({"vague"})), {"long_prompt": "failed"}, "fails on a prompt too long"),
        (Policy(spoil=no_version), {"weight_version": None}, "which weights"),
        (Policy(spoil=scripted), {"logprob_kind": "scripted"}, "from a script"),
    ],
)
async def test_a_defect_is_found_and_training_refuses_it(policy: Policy, differs: dict[str, Any], said: str) -> None:
    found, _ = await measured(policy)
    assert {name: getattr(found, name) for name in differs} == differs
    (line,) = [line for line in why_untrainable(found, 0.7, LIMIT) if said in line]
    assert line.startswith("engine x: it")
    assert "\n" not in line


async def test_an_engine_that_refuses_a_large_max_tokens_is_as_good() -> None:
    found, _ = await measured(Policy(frozenset({"strict"})))
    assert found == replace(GOOD, large_max_tokens="refused")


async def test_log_probabilities_from_before_temperature_will_do_at_temperature_1() -> None:
    found, client = await measured(Policy(frozenset({"raw"})))
    assert why_untrainable(found, 1.0, LIMIT) == []
    assert client.logprob_kind == "raw"


@pytest.mark.parametrize("flags", [{"hot", "raw"}, {"certain", "raw"}])
async def test_where_nothing_can_be_compared_the_kind_is_unknown_and_only_temperature_1_is_trained(
    flags: set[str],
) -> None:
    """An engine that ignores temperature in what it samples, too, or a policy without a doubt."""
    found, _ = await measured(Policy(frozenset(flags)))
    assert found.logprob_kind == "unknown"
    assert len(why_untrainable(found, 0.7, LIMIT)) == 1
    assert why_untrainable(found, 1.0, LIMIT) == []


def test_a_context_shorter_than_the_runs_is_named() -> None:
    (line,) = why_untrainable(replace(GOOD, max_model_len=4096), 1.0, 8192)
    assert "takes 4096 tokens, the run's max_model_len is 8192" in line


async def test_o63_an_engine_that_refuses_everything_is_told_in_its_own_words() -> None:
    refusal = {"error": {"message": "tool parser not set"}}
    engine = ScriptedEngine(lambda prompt, n: web.json_response(refusal, status=400))
    async with serving(engine), Connections() as connections:
        with pytest.raises(InfrastructureError, match="answered 400: tool parser not set"):
            await measure(EngineClient(engine.url, connections), PROMPT, LIMIT)
