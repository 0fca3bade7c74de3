"""The HTTP side of a policy server: the part of vLLM's surface that the proxy and the orchestrator use, over a backend
that samples.

Same paths, fields and error codes as vLLM 0.32; what it has not it refuses with 400, instead of ignoring it. One
difference: an id outside the vocabulary is a 400 here and ends vLLM's engine.
"""

import time
import uuid
from collections.abc import Awaitable
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from typing import Literal
from typing import Protocol
from typing import TypeVar

import numpy as np
from aiohttp import web
from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import ValidationError

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError

MODEL = "policy"
MAX_BYTES = 64 << 20
"""Of a request's body. An application that has others within it must say so too."""


@dataclass(frozen=True)
class Params:
    """How to sample one request. `max_tokens` is already cut to the context."""

    max_tokens: int
    temperature: float
    top_p: float
    stop_token_ids: frozenset[int]
    seed: int | None


@dataclass(frozen=True)
class Generated:
    """What was sampled, stop token included. `versions` has the weight version of each token; `cached_tokens` counts
    prompt tokens that were not computed again; `finish` is "stop", "length" or "abort"."""

    token_ids: list[int]
    logprobs: list[float]
    versions: list[str]
    finish: str
    cached_tokens: int


class Backend(Protocol):
    """What samples. Raises ConfigError for what it refuses, InfrastructureError if it cannot now."""

    @property
    def version(self) -> str:
        """Of the weights, as the orchestrator calls it."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Those that end a reply by the model's own account; a request adds its own."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def paused(self) -> bool: ...

    async def generate(self, prompt: np.ndarray, params: Params) -> Generated:
        """Sample once; cancelled if the client goes away."""

    async def pause(self, abort: bool) -> None:
        """Start no request until `resume`, and return when none runs; with `abort`, end those that do."""

    async def resume(self) -> None: ...

    async def reload(self, folder: Path) -> None:
        """Serve the weights in `folder`."""

    async def forget_prefixes(self) -> None: ...

    async def set_version(self, version: str) -> None:
        """What is sampled from now on is sampled by weights of that name."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SamplingBody(_Body):
    """The part of vLLM's sampling parameters that the trainer can reproduce."""

    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    stop_token_ids: list[int] = []
    seed: int | None = None
    logprobs: Literal[0] | None = None
    detokenize: Literal[False] = False


class GenerateBody(_Body):
    """Body of `/inference/v1/generate`."""

    model: Literal["policy"] = "policy"
    token_ids: list[int] = Field(min_length=1)
    sampling_params: SamplingBody
    stream: Literal[False] = False


class ReloadArguments(_Body):
    """Where the new weights are."""

    weights_path: str


class RpcBody(_Body):
    """Body of `/collective_rpc`; of vLLM's methods only the reload."""

    method: Literal["reload_weights"]
    kwargs: ReloadArguments


class VersionBody(_Body):
    """Body of `/update_weight_version`."""

    new_version: str


class Server:
    """The HTTP side: one method per path."""

    def __init__(self, backend: Backend, folder: Path, max_model_len: int) -> None:
        self._backend = backend
        self._folder = folder
        self._max_model_len = max_model_len

    def app(self) -> web.Application:
        """The application with all paths."""
        app = web.Application(client_max_size=MAX_BYTES, middlewares=[_plain_errors])
        app.add_routes(
            [
                web.get("/health", self.health),
                web.get("/v1/models", self.models),
                web.post("/inference/v1/generate", self.generate),
                web.post("/pause", self.pause),
                web.post("/resume", self.resume),
                web.get("/is_paused", self.is_paused),
                web.post("/collective_rpc", self.collective_rpc),
                web.post("/reset_prefix_cache", self.reset_prefix_cache),
                web.post("/update_weight_version", self.update_weight_version),
                web.get("/weight_info", self.weight_info),
            ]
        )
        return app

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def models(self, _: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "root": str(self._folder), "max_model_len": self._max_model_len}
        return web.json_response({"object": "list", "data": [model]})

    async def generate(self, request: web.Request) -> web.Response:
        body = await _read(request, GenerateBody)
        result = await self._backend.generate(np.array(body.token_ids, np.int32), self._params(body))
        return web.json_response(_answer(body, result, self._backend.stop_token_ids))

    def _params(self, body: GenerateBody) -> Params:
        size = len(body.token_ids)
        if size >= self._max_model_len:
            raise ConfigError(
                f"The prompt has {size} tokens; the maximum model length of {self._max_model_len} must hold it and at "
                "least 1 output token."
            )
        if not 0 <= min(body.token_ids) <= max(body.token_ids) < self._backend.vocab_size:
            raise ConfigError(f"token_ids: not all are in the vocabulary of {self._backend.vocab_size}")
        given = body.sampling_params
        room = self._max_model_len - size
        return Params(
            max_tokens=min(given.max_tokens or room, room),
            temperature=given.temperature,
            top_p=given.top_p,
            stop_token_ids=self._backend.stop_token_ids.union(given.stop_token_ids),
            seed=given.seed,
        )

    async def pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort")
        if mode not in ("abort", "wait"):
            raise ConfigError(f"mode: {mode!r} is not supported; use abort or wait")
        await self._backend.pause(abort=mode == "abort")
        return web.json_response({"status": "paused"})

    async def resume(self, _: web.Request) -> web.Response:
        await self._backend.resume()
        return web.json_response({"status": "resumed"})

    async def is_paused(self, _: web.Request) -> web.Response:
        return web.json_response({"is_paused": self._backend.paused})

    async def collective_rpc(self, request: web.Request) -> web.Response:
        body = await _read(request, RpcBody)
        folder = Path(body.kwargs.weights_path)
        await self._backend.reload(folder)
        self._folder = folder
        return web.json_response({"results": [None]})

    async def reset_prefix_cache(self, _: web.Request) -> web.Response:
        await self._backend.forget_prefixes()
        return web.json_response({"success": True})

    async def update_weight_version(self, request: web.Request) -> web.Response:
        body = await _read(request, VersionBody)
        await self._backend.set_version(body.new_version)
        return web.json_response({"success": True, "new_version": body.new_version})

    async def weight_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self._backend.version})


_Model = TypeVar("_Model", bound=BaseModel)


async def _read(request: web.Request, model: type[_Model]) -> _Model:
    return model.model_validate_json(await request.read())


@web.middleware
async def _plain_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """A bad request as 400 in vLLM's form, and what cannot be answered now as 503."""
    code, kind = 400, "BadRequestError"
    try:
        return await handler(request)
    except ValidationError as error:
        first = error.errors()[0]
        message = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    except ConfigError as error:
        message = str(error)
    except InfrastructureError as error:
        message, code, kind = str(error), 503, "ServiceUnavailableError"
    return web.json_response({"error": {"message": message, "type": kind, "param": None, "code": code}}, status=code)


def _answer(body: GenerateBody, result: Generated, own_stops: frozenset[int]) -> dict[str, Any]:
    """vLLM's answer. `stop_reason` is the id of a stop token that the request asked for."""
    last = result.token_ids[-1] if result.finish == "stop" else None
    logprobs = None
    if body.sampling_params.logprobs is not None:
        pairs = zip(result.token_ids, result.logprobs, strict=True)
        logprobs = {"content": [{"token_id": token, "logprob": logprob} for token, logprob in pairs]}
    prompt, completion = len(body.token_ids), len(result.token_ids)
    return {
        "request_id": f"generate-tokens-{uuid.uuid4().hex}",
        "model": MODEL,
        "created": int(time.time()),
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
        },
        "prompt_token_ids": None,
        "output_mode": "tokens",
        "choices": [
            {
                "index": 0,
                "finish_reason": result.finish,
                "stop_reason": None if last in own_stops else last,
                "token_ids": result.token_ids,
                "weight_versions": _spans(result.versions),
                "logprobs": logprobs,
            }
        ],
    }


def _spans(versions: list[str]) -> list[dict[str, Any]]:
    """Runs of equal versions as {version, start, end}, in sampled-token indexes."""
    spans: list[dict[str, Any]] = []
    start = 0
    for version, run in groupby(versions):
        end = start + len(list(run))
        spans.append({"version": version, "start": start, "end": end})
        start = end
    return spans
