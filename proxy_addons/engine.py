"""The policy engine as the gateway sees it: token ids in; ids, logprobs, finish and weight versions out.

Both engines speak the same wire, vLLM's `/inference/v1/generate`; `training/engines/` holds the servers.
"""

import asyncio
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from proxy_addons.conversation import Problem
from proxy_addons.errors import InfrastructureError
from proxy_addons.wire import Connections

# The engines refuse other mistakes with 400 too, and those are ours, not the prompt's.
_TOO_LONG = re.compile(r"maximum (context|model) length")


class EngineAway(InfrastructureError):
    """An engine that did not answer, or answered that it is unwell: another replica may do better. Any other
    InfrastructureError of an engine is its considered refusal, which would be the same elsewhere (case O63)."""

    @property
    def error_class(self) -> str:
        return InfrastructureError.__name__


TokenIds = Sequence[int] | NDArray[np.int32]


@dataclass(frozen=True)
class Sampling:
    """How to sample. Only what the trainer can reproduce: no penalties, no grammar, no top-k."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None


@dataclass(frozen=True)
class Completion:
    """`token_ids` and `logprobs` have one entry per sampled token, the stop token included. `logprob_kind`
    "processed" means after temperature, "raw" before. `weight_version` and `weight_version_last` are the oldest and
    newest weights that sampled a token, None if the engine does not say. `findings` non-empty: for reading only, not
    for training. `prompt_tokens` is how many the engine says it read."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    finish: str
    weight_version: int | None
    weight_version_last: int | None = None
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    logprob_kind: str = "processed"
    findings: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Pictures:
    """The images of a prompt. `token_ids` is the prompt with one placeholder token for each image, in order, which the
    engine expands itself; `urls` are `data:` URLs and `names` their hashes."""

    token_ids: list[int]
    urls: tuple[str, ...]
    names: tuple[str, ...]


class EngineClient:
    """One policy server over HTTP. `logprob_kind` is what its answers are taken to hold where they do not say so
    themselves; `capability.measure` finds it out."""

    def __init__(self, url: str, connections: Connections, timeout_s: float = 1800.0) -> None:
        self.url = url.rstrip("/")
        self.logprob_kind = "processed"
        self._connections = connections
        self._timeout_s = timeout_s

    async def generate(self, prompt_ids: TokenIds, sampling: Sampling, pictures: Pictures | None = None) -> Completion:
        """Sample once from `prompt_ids`. Raises EngineAway if the engine is away or broken, InfrastructureError with
        its own words if it refuses, Problem `context_length` if it says the prompt is too long.

        With `pictures`, the engine tells the prompt as it expanded it; one that is not `prompt_ids` is the finding
        `prompt_ids_differ`."""
        params: dict[str, Any] = {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": 0,
            "detokenize": False,
        }
        if sampling.seed is not None:
            params["seed"] = sampling.seed
        body: dict[str, Any] = {"model": "policy", "token_ids": prompt_ids, "sampling_params": params, "stream": False}
        if pictures is not None:
            named = zip(pictures.urls, pictures.names, strict=True)
            parts = [{"type": "image_url", "url": url, "uuid": name} for url, name in named]
            body |= {"token_ids": pictures.token_ids, "content_parts": parts, "return_token_ids": True}
        # orjson: a prompt of 26,000 ids takes the standard library longer to write than all the rest of a call.
        status, answer = await self._ask(
            "POST", "/inference/v1/generate", orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        )
        if status != 200:
            text = _words(answer)
            if status == 400 and _TOO_LONG.search(text):
                raise Problem("context_length", text)
            passing = status >= 500 or status in (408, 429)
            raise (EngineAway if passing else InfrastructureError)(f"policy server answered {status}: {text}")
        try:
            told = _json(answer)
            completion = read_completion(told, self.logprob_kind)
            if pictures is not None and told.get("prompt_token_ids") != list(prompt_ids):
                return replace(completion, findings=(*completion.findings, "prompt_ids_differ"))
            return completion
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise EngineAway(
                f"policy server at {self.url}: no completion in its answer: {type(error).__name__}: {error}"
            ) from error

    async def max_model_len(self) -> int | None:
        """The longest prompt and reply together that the engine says it takes, in tokens; None if it does not say."""
        status, answer = await self._ask("GET", "/v1/models")
        try:
            return int(_json(answer)["data"][0]["max_model_len"]) if status == 200 else None
        except (ValueError, LookupError, TypeError):
            return None

    async def _ask(self, method: str, path: str, data: bytes = b"") -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._connections.ask(method, self.url + path, data)
        except OSError as error:  # a TimeoutError is one
            raise EngineAway(f"policy server at {self.url}: {type(error).__name__}: {error}") from error


def read_completion(body: dict[str, Any], logprob_kind: str = "processed") -> Completion:
    """A completion from the engine's answer, with ids and logprobs paired by token id (cases O24, O27, O59).

    A pair that cannot be made is a finding, never a guess: `ids_missing`, `logprobs_misaligned`, `logprob_not_finite`.
    """
    choice = body["choices"][0]
    ids = tuple(choice.get("token_ids") or ())
    entries = (choice.get("logprobs") or {}).get("content") or []
    findings = []
    usage = body.get("usage") or {}
    sampled = usage.get("completion_tokens")
    if not ids or (sampled is not None and sampled != len(ids)):
        findings.append("ids_missing")
    if [entry.get("token_id") for entry in entries] != list(ids):
        findings.append("logprobs_misaligned")
        values: list[float | None] = [None] * len(ids)
    else:
        values = [v if v is not None and math.isfinite(v) else None for v in (e.get("logprob") for e in entries)]
        if any(v is None for v in values):
            findings.append("logprob_not_finite")
    # A server that nobody has told its version says null, or a word.
    told = [str(span.get("version")) for span in choice.get("weight_versions") or ()]
    spans = {int(version) for version in told if version.isdecimal()}
    if len(spans) > 1:
        findings.append("weight_version_changed")
    return Completion(
        token_ids=ids,
        logprobs=tuple(values),
        finish=choice.get("finish_reason") or "stop",
        weight_version=min(spans, default=None),
        weight_version_last=max(spans, default=None),
        logprob_kind=choice.get("logprob_kind") or logprob_kind,
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        prompt_tokens=usage.get("prompt_tokens"),
        findings=tuple(findings),
    )


def _json(data: bytes) -> Any:
    """JSON, also where it holds the NaN and infinities that Python servers write and the standard forbids (O59)."""
    try:
        return orjson.loads(data)
    except ValueError:
        return json.loads(data)


def _words(answer: bytes) -> str:
    """What the engine says went wrong, without the JSON around it."""
    text = answer.decode(errors="replace")
    try:
        message = json.loads(text)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = text
    return str(message)[:500]
