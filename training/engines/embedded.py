"""The embedded policy engine: a small server on torch and transformers that speaks a part of vLLM's HTTP surface.

    python -m training.engines.embedded --model DIR --port 8001 --max-model-len 16384

For a laptop: float32, exact token ids and logprobs, continuous batching and prefix reuse (`_decoder`, `_kv`), weights
reloaded in place. Same paths, fields and error codes as vLLM 0.32 for the part it has; it refuses with 400 what it has
not, instead of ignoring it. One difference: an id outside the vocabulary is a 400 here and ends vLLM's engine.
"""

import argparse
import asyncio
import sys
import time
import uuid
from collections.abc import Awaitable
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any
from typing import Literal
from typing import TypeVar

import numpy as np
import torch
from aiohttp import web
from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import ValidationError

from proxy_addons.errors import ConfigError
from training.engines import Launch
from training.engines._decoder import Decoder
from training.engines._decoder import Generated
from training.engines._decoder import Generation
from training.engines._decoder import Params

MODEL = "policy"


def launch(model_dir: Path, port: int, max_model_len: int) -> Launch:
    """How to serve `model_dir` with this engine."""
    argv = (sys.executable, "-m", "training.engines.embedded", "--model", str(model_dir), "--port", str(port))
    return Launch((*argv, "--max-model-len", str(max_model_len)), {"HF_HUB_OFFLINE": "1"}, start_s=120.0)


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

    def __init__(self, decoder: Decoder, folder: Path, max_model_len: int) -> None:
        self._decoder = decoder
        self._folder = folder
        self._max_model_len = max_model_len

    def app(self) -> web.Application:
        """The application with all paths."""
        app = web.Application(client_max_size=64 << 20, middlewares=[_plain_errors])
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
        generation = Generation(np.array(body.token_ids, np.int32), self._params(body))
        self._decoder.submit(generation)
        try:
            result = await asyncio.wrap_future(generation.future)
        except asyncio.CancelledError:  # the client is gone
            generation.abandoned = True
            raise
        return web.json_response(_answer(body, result, self._decoder.stop_token_ids))

    def _params(self, body: GenerateBody) -> Params:
        size = len(body.token_ids)
        if size >= self._max_model_len:
            raise ConfigError(
                f"The prompt has {size} tokens; the maximum model length of {self._max_model_len} must hold it and at "
                "least 1 output token."
            )
        if not 0 <= min(body.token_ids) <= max(body.token_ids) < self._decoder.vocab_size:
            raise ConfigError(f"token_ids: not all are in the vocabulary of {self._decoder.vocab_size}")
        given = body.sampling_params
        room = self._max_model_len - size
        return Params(
            max_tokens=min(given.max_tokens or room, room),
            temperature=given.temperature,
            top_p=given.top_p,
            stop_token_ids=self._decoder.stop_token_ids.union(given.stop_token_ids),
            seed=given.seed,
        )

    async def pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort")
        if mode not in ("abort", "wait"):
            raise ConfigError(f"mode: {mode!r} is not supported; use abort or wait")
        await asyncio.wrap_future(self._decoder.pause(abort=mode == "abort"))
        while self._decoder.busy:
            await asyncio.sleep(0.005)
        return web.json_response({"status": "paused"})

    async def resume(self, _: web.Request) -> web.Response:
        await asyncio.wrap_future(self._decoder.resume())
        return web.json_response({"status": "resumed"})

    async def is_paused(self, _: web.Request) -> web.Response:
        return web.json_response({"is_paused": self._decoder.paused})

    async def collective_rpc(self, request: web.Request) -> web.Response:
        body = await _read(request, RpcBody)
        folder = Path(body.kwargs.weights_path)
        await asyncio.to_thread(self._decoder.reload, folder)
        self._folder = folder
        return web.json_response({"results": [None]})

    async def reset_prefix_cache(self, _: web.Request) -> web.Response:
        await asyncio.wrap_future(self._decoder.forget_prefixes())
        return web.json_response({"success": True})

    async def update_weight_version(self, request: web.Request) -> web.Response:
        body = await _read(request, VersionBody)
        await asyncio.wrap_future(self._decoder.set_version(body.new_version))
        return web.json_response({"success": True, "new_version": body.new_version})

    async def weight_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self._decoder.version})


_Model = TypeVar("_Model", bound=BaseModel)


async def _read(request: web.Request, model: type[_Model]) -> _Model:
    return model.model_validate_json(await request.read())


@web.middleware
async def _plain_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """A bad request as 400 in vLLM's form."""
    try:
        return await handler(request)
    except ValidationError as error:
        first = error.errors()[0]
        message = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    except ConfigError as error:
        message = str(error)
    body = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
    return web.json_response({"error": body}, status=400)


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


def main() -> None:
    """The server process."""
    parser = argparse.ArgumentParser(description="Serve a Hugging Face folder by token ids.")
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at; another than loopback only in a cluster"
    )
    parser.add_argument("--port", type=int, required=True, help="port to listen at")
    parser.add_argument("--max-model-len", type=int, required=True, help="prompt and reply together, in tokens")
    parser.add_argument("--max-running", type=int, default=16, help="requests decoded together")
    parser.add_argument("--cache-tokens", type=int, default=262_144, help="tokens kept for prefix reuse")
    parser.add_argument("--device", default="cpu", help="torch device")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    try:
        decoder = Decoder(options.model, options.device, options.max_running, options.cache_tokens)
    except ConfigError as error:
        sys.exit(str(error))
    app = Server(decoder, options.model, options.max_model_len).app()
    # handler_cancellation: a handler must learn that its client is gone, to stop sampling for nobody
    web.run_app(
        app,
        host=options.host,
        port=options.port,
        handler_cancellation=True,
        access_log=None,
        print=None,
        shutdown_timeout=1,
    )


if __name__ == "__main__":
    main()
