"""What an engine can do, measured with a handful of real completions before any rollout.

What an engine says about itself is not believed, unless it says that a script speaks in its place. The kind of its
log-probabilities is found by sampling the same tokens at two temperatures: at 0 an engine takes the likeliest token and
tells its log-probability at temperature 1; close to 0 it takes the same token, and the log-probability after
temperature ("processed") is then about 0, while one from before temperature ("raw") has not moved.
"""

import asyncio
from dataclasses import dataclass
from typing import Literal

from proxy_addons.conversation import Problem
from proxy_addons.engine import Completion
from proxy_addons.engine import EngineClient
from proxy_addons.engine import Sampling
from proxy_addons.errors import InfrastructureError

_TOKENS = 8
_COLD = 0.02  # vLLM takes anything below 0.01 for 0.01
_CERTAIN = 0.05  # a token this close to a log-probability of 0 tells nothing about temperature
_MOVED = 0.01

LogprobKind = Literal["processed", "raw", "scripted", "unknown"]
StopToken = Literal["included", "left_out", "ignored", "unknown"]


@dataclass(frozen=True)
class Capability:
    """What was measured at one engine.

    `ids`: every sampled token has its id, as many as the engine counts. `logprobs`: each id has its own finite
    log-probability. `logprob_kind`: "unknown" where the engine took other tokens at both temperatures, or none that
    tells. `stop_token`: whether a stop token that ended a reply is among its ids. `large_max_tokens`: what became of a
    `max_tokens` beyond the context. `long_prompt`: what became of a prompt as long as the context; "taken" if the
    engine read all of it, which only one with a longer context than the run's can. `weight_version`: None if the engine
    does not say which weights sampled a token. `max_model_len`: prompt and reply, in tokens; None if not told.
    """

    engine: str
    ids: bool
    logprobs: bool
    logprob_kind: LogprobKind
    max_tokens: Literal["honoured", "ignored"]
    large_max_tokens: Literal["clamped", "refused", "not_asked"]
    stop_token: StopToken
    finish_reasons: Literal["right", "wrong"]
    long_prompt: Literal["refused", "truncated", "taken", "failed"]
    weight_version: int | None
    max_model_len: int | None


async def measure(client: EngineClient, prompt: list[int], max_model_len: int) -> Capability:
    """Ask the engine at `client` a dozen times. `prompt` is a text of at least 8 ids of the policy's vocabulary;
    `max_model_len` is what the run needs. The client's own `logprob_kind` is set to what was found.

    Raises InfrastructureError, with the engine's own words, if it does not answer a plain request.
    """
    # A prompt cut off in the middle: what comes next is open, so the log-probabilities are not all about 0.
    prompts = [prompt[: len(prompt) * part // 4] for part in (2, 3, 4)]
    every = await asyncio.gather(
        *(_ask(client, ids, Sampling(_TOKENS, temperature)) for temperature in (0.0, _COLD, 1.0) for ids in prompts)
    )
    greedy, cold = every[:3], every[3:6]
    limit = await client.max_model_len()
    client.logprob_kind = kind = _logprob_kind(greedy, cold)
    stop_token = await _stop_token(client, prompts[0], greedy[0])
    versions = {v for each in every for v in (each.weight_version, each.weight_version_last)}
    return Capability(
        engine=client.url,
        ids=not any("ids_missing" in each.findings for each in every),
        logprobs=not any({"logprobs_misaligned", "logprob_not_finite"} & {*each.findings} for each in every),
        logprob_kind=kind,
        max_tokens="honoured" if all(len(each.token_ids) <= _TOKENS for each in every) else "ignored",
        large_max_tokens=await _large_max_tokens(client, prompts[0], greedy[0], limit or max_model_len)
        if stop_token == "included"
        else "not_asked",
        stop_token=stop_token,
        finish_reasons="right" if _finish_is_right(every) else "wrong",
        long_prompt=await _long_prompt(client, prompt, limit, max_model_len),
        weight_version=versions.pop() if len(versions) == 1 else None,
        max_model_len=limit,
    )


def why_untrainable(found: Capability, temperature: float, max_model_len: int) -> list[str]:
    """What keeps a run at `temperature` from training on this engine's tokens, one line each; empty if nothing does."""
    why = []
    if not found.ids:
        why.append("it does not give the id of every token that it sampled")
    if not found.logprobs:
        why.append("it does not give each sampled token's own log-probability")
    if found.logprob_kind == "scripted":
        why.append("its tokens come from a script, not from a policy")
    elif found.logprobs and found.logprob_kind != "processed" and temperature != 1:
        why.append(
            f"its log-probabilities are not shown to be those after temperature (kind: {found.logprob_kind}), which "
            f"training at temperature {temperature:g} computes; start it with those, or set temperature to 1"
        )
    if found.max_tokens == "ignored":
        why.append("it samples more tokens than max_tokens")
    if found.stop_token in ("left_out", "ignored"):
        why.append(
            "it leaves the stop token out of the ids, so that nobody learns to stop"
            if found.stop_token == "left_out"
            else "it goes on after a stop token"
        )
    if found.finish_reasons == "wrong":
        why.append("it does not tell a reply that was cut from one that ended")
    if found.long_prompt in ("truncated", "failed"):
        fate = "cuts a prompt that is too long" if found.long_prompt == "truncated" else "fails on a prompt too long"
        why.append(f"it {fate} instead of refusing it with status 400 and its maximum context length")
    if found.weight_version is None:
        why.append("it does not tell which weights sampled a token")
    if found.max_model_len is not None and found.max_model_len < max_model_len:
        why.append(f"it takes {found.max_model_len} tokens, the run's max_model_len is {max_model_len}")
    return [f"engine {found.engine}: {line}" for line in why]


async def _ask(client: EngineClient, prompt: list[int], sampling: Sampling) -> Completion:
    try:
        return await client.generate(prompt, sampling)
    except Problem as problem:
        raise InfrastructureError(f"policy server refused a prompt of {len(prompt)} tokens: {problem}") from problem


def _logprob_kind(greedy: list[Completion], cold: list[Completion]) -> LogprobKind:
    if any(each.logprob_kind == "scripted" for each in greedy):
        return "scripted"
    told = False
    for at_zero, near_zero in zip(greedy, cold, strict=True):
        pairs = zip(at_zero.token_ids, at_zero.logprobs, near_zero.token_ids, near_zero.logprobs, strict=False)
        for token, one, other_token, other in pairs:
            if token != other_token or one is None or other is None:
                break  # from here on they go on from different texts
            if one < -_CERTAIN:
                if abs(one - other) > _MOVED:
                    return "processed"
                told = True
    return "raw" if told else "unknown"


async def _stop_token(client: EngineClient, prompt: list[int], greedy: Completion) -> StopToken:
    """What becomes of the greedy reply if its last token is a stop token."""
    if not greedy.token_ids:
        return "unknown"
    stop = greedy.token_ids[-1]
    # Twice the room, so that the stop token and not the limit ends it.
    got = await _ask(client, prompt, Sampling(2 * _TOKENS, temperature=0.0, stop_token_ids=(stop,)))
    if stop not in got.token_ids:
        return "left_out" if got.finish == "stop" else "unknown"
    return "included" if got.token_ids.index(stop) == len(got.token_ids) - 1 and got.finish == "stop" else "ignored"


async def _large_max_tokens(
    client: EngineClient, prompt: list[int], greedy: Completion, limit: int
) -> Literal["clamped", "refused"]:
    """What becomes of a `max_tokens` that cannot fit. The stop token keeps the reply short."""
    try:
        await client.generate(prompt, Sampling(limit, temperature=0.0, stop_token_ids=greedy.token_ids[-1:]))
    except (Problem, InfrastructureError):
        return "refused"
    return "clamped"


def _finish_is_right(every: list[Completion]) -> bool:
    """Replies of full length end by "length", all others by "stop". One that stops just there may say either."""
    full = [each.finish for each in every if len(each.token_ids) >= _TOKENS]
    short = [each.finish for each in every if len(each.token_ids) < _TOKENS]
    return {*full, *short} <= {"stop", "length"} and "length" not in short and (not full or "length" in full)


async def _long_prompt(
    client: EngineClient, prompt: list[int], told: int | None, needed: int
) -> Literal["refused", "truncated", "taken", "failed"]:
    """What becomes of a prompt that leaves no room for a reply."""
    limit = told or needed
    ids = [*prompt, *[prompt[-1]] * limit][:limit]
    try:
        got = await client.generate(ids, Sampling(max_tokens=1))
    except Problem:
        return "refused"
    except InfrastructureError:
        return "failed"
    whole = told is None and got.prompt_tokens is not None and got.prompt_tokens >= limit
    return "taken" if whole else "truncated"
