"""The policy engine as the gateway sees it: token ids in; ids, logprobs, finish and weight version out.

Both engines speak the same wire, vLLM's `/inference/v1/generate`; `training/engines/` holds the servers.
"""

import math
import re
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any

import aiohttp
import orjson

from proxy_addons.conversation import Problem
from proxy_addons.errors import InfrastructureError

# The engines refuse other mistakes with 400 too, and those are ours, not the prompt's.
_TOO_LONG = re.compile(r"maximum (context|model) length")


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
    "processed" means after temperature. `findings` non-empty: for reading only, not for training."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    finish: str
    weight_version: int
    cached_tokens: int | None = None
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
    """One policy server over HTTP."""

    def __init__(self, url: str, session: aiohttp.ClientSession, timeout_s: float = 1800.0) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def generate(self, prompt_ids: list[int], sampling: Sampling, pictures: Pictures | None = None) -> Completion:
        """Sample once from `prompt_ids`. Raises InfrastructureError if the engine is away or broken, Problem
        `context_length` if it says the prompt is too long.

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
        body = {"model": "policy", "token_ids": prompt_ids, "sampling_params": params, "stream": False}
        if pictures is not None:
            parts = zip(pictures.urls, pictures.names, strict=True)
            body["content_parts"] = [{"type": "image_url", "url": url, "uuid": name} for url, name in parts]
            body |= {"token_ids": pictures.token_ids, "return_token_ids": True}
        try:
            # orjson: a prompt of 26,000 ids takes the standard library longer to write than all the rest of a call.
            async with self._session.post(
                f"{self.url}/inference/v1/generate",
                data=orjson.dumps(body),
                headers={"content-type": "application/json"},
                timeout=self._timeout,
            ) as response:
                if response.status != 200:
                    text = (await response.text())[:500]
                    if response.status == 400 and _TOO_LONG.search(text):
                        raise Problem("context_length", text)
                    raise InfrastructureError(f"policy server answered {response.status}: {text}")
                answer = orjson.loads(await response.read())
                completion = read_completion(answer)
                if pictures is not None and answer.get("prompt_token_ids") != prompt_ids:
                    return replace(completion, findings=(*completion.findings, "prompt_ids_differ"))
                return completion
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            raise InfrastructureError(f"policy server at {self.url}: {type(error).__name__}: {error}") from error


def read_completion(body: dict[str, Any]) -> Completion:
    """A completion from the engine's answer, with ids and logprobs paired by token id (cases O24, O27, O59).

    A pair that cannot be made is a finding, never a guess: `ids_missing`, `logprobs_misaligned`, `logprob_not_finite`.
    """
    choice = body["choices"][0]
    ids = tuple(choice.get("token_ids") or ())
    entries = (choice.get("logprobs") or {}).get("content") or []
    findings = []
    usage = (body.get("usage") or {}).get("completion_tokens")
    if not ids or (usage is not None and usage != len(ids)):
        findings.append("ids_missing")
    if [entry.get("token_id") for entry in entries] != list(ids):
        findings.append("logprobs_misaligned")
        values: list[float | None] = [None] * len(ids)
    else:
        values = [v if v is not None and math.isfinite(v) else None for v in (e.get("logprob") for e in entries)]
        if any(v is None for v in values):
            findings.append("logprob_not_finite")
    versions = choice.get("weight_versions") or [{}]
    spans = {int(span.get("version") or 0) for span in versions}
    if len(spans) > 1:
        findings.append("weight_version_changed")
    return Completion(
        token_ids=ids,
        logprobs=tuple(values),
        finish=choice.get("finish_reason") or "stop",
        weight_version=min(spans),
        logprob_kind=choice.get("logprob_kind") or "processed",
        cached_tokens=((body.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens"),
        findings=tuple(findings),
    )
