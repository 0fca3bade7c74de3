"""The embedded policy engine: a small server on torch and transformers that speaks a part of vLLM's HTTP surface.

    python -m training.engines.embedded --model DIR --port 8001 --max-model-len 16384

For a laptop: float32, exact token ids and logprobs, continuous batching and prefix reuse (`_decoder`, `_kv`), weights
reloaded in place.
"""

import argparse
import asyncio
import sys
from pathlib import Path

import numpy as np
import torch
from aiohttp import web

from proxy_addons.errors import ConfigError
from training.engines import Launch
from training.engines._decoder import CACHE_TOKENS
from training.engines._decoder import MAX_RUNNING
from training.engines._decoder import Decoder
from training.engines._decoder import Generation
from training.engines._http import Generated
from training.engines._http import Params
from training.engines._http import Server


def launch(model_dir: Path, port: int, max_model_len: int) -> Launch:
    """How to serve `model_dir` with this engine."""
    argv = (sys.executable, "-m", "training.engines.embedded", "--model", str(model_dir), "--port", str(port))
    return Launch((*argv, "--max-model-len", str(max_model_len)), {"HF_HUB_OFFLINE": "1"}, start_s=120.0)


class Embedded:
    """The decoder's thread as a backend."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    @property
    def version(self) -> str:
        return self._decoder.version

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return self._decoder.stop_token_ids

    @property
    def vocab_size(self) -> int:
        return self._decoder.vocab_size

    @property
    def paused(self) -> bool:
        return self._decoder.paused

    async def generate(self, prompt: np.ndarray, params: Params) -> Generated:
        generation = Generation(prompt, params)
        self._decoder.submit(generation)
        try:
            return await asyncio.wrap_future(generation.future)
        except asyncio.CancelledError:  # the client is gone
            generation.abandoned = True
            raise

    async def pause(self, abort: bool) -> None:
        await asyncio.wrap_future(self._decoder.pause(abort))
        while self._decoder.busy:
            await asyncio.sleep(0.005)

    async def resume(self) -> None:
        await asyncio.wrap_future(self._decoder.resume())

    async def reload(self, folder: Path) -> None:
        await asyncio.to_thread(self._decoder.reload, folder)

    async def forget_prefixes(self) -> None:
        await asyncio.wrap_future(self._decoder.forget_prefixes())

    async def set_version(self, version: str) -> None:
        await asyncio.wrap_future(self._decoder.set_version(version))


def main() -> None:
    """The server process."""
    parser = argparse.ArgumentParser(description="Serve a Hugging Face folder by token ids.")
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at; another than loopback only in a cluster"
    )
    parser.add_argument("--port", type=int, required=True, help="port to listen at")
    parser.add_argument("--max-model-len", type=int, required=True, help="prompt and reply together, in tokens")
    parser.add_argument("--max-running", type=int, default=MAX_RUNNING, help="requests decoded together")
    parser.add_argument("--cache-tokens", type=int, default=CACHE_TOKENS, help="tokens kept for prefix reuse")
    parser.add_argument("--device", default="cpu", help="torch device")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    try:
        decoder = Decoder(options.model, options.device, options.max_running, options.cache_tokens)
    except ConfigError as error:
        sys.exit(str(error))
    app = Server(Embedded(decoder), options.model, options.max_model_len).app()
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
