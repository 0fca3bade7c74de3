"""Where a trainer that serves its policy answers: each of veRL's rollout replicas as a policy server of its own.

The trainer (`training.standing`) and its replicas are actors of Ray, which come and go and are where Ray puts them. The
proxy asks one address for the whole run: a port on loopback in the training process, `/N` for replica N, with the
surface that every policy server has (`training.engines`). Weights come to the replicas in memory, from the trainer that
holds the folder's checkpoint; one that does not is replaced by one that does.
"""

import asyncio
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from transformers import AutoConfig

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from training import main_ppo
from training.engines._http import MAX_BYTES
from training.engines._http import Generated
from training.engines._http import Params
from training.engines._http import Server
from training.job import ServeJob
from training.job import TrainJob
from training.standing import line_of


class Front:
    """The replicas of one trainer at a time. Its threads: the one that does the updates, and the one that listens."""

    def __init__(self, job: ServeJob) -> None:
        self._port = job.port
        self._begins = job.begins
        self._handles: list[Any] = []
        self._folder: Path | None = None
        self._loading = asyncio.Lock()

    def open(self) -> None:
        """Have the trainer begin, and listen. Raises ConfigError or InfrastructureError if it cannot."""
        self._handles = main_ppo.serve(self._begins)
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="front", daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._listen(), loop).result()

    async def _listen(self) -> None:
        begins = self._begins
        assert begins.settings.served_len is not None
        app = web.Application(client_max_size=MAX_BYTES)
        for number in range(begins.settings.replicas):
            backend = Replica(self, number, Path(begins.base_model), str(begins.weight_version))
            server = Server(backend, Path(begins.base_model), begins.settings.served_len)
            app.add_subapp(f"/{number}", server.app())
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self._port).start()
        except OSError as error:
            raise InfrastructureError(f"the trainer cannot serve at port {self._port}: {error}") from error

    def rest(self) -> None:
        """Ask the replicas no more until weights are loaded: an update begins."""
        self._handles, self._folder = [], None

    def lost_one(self) -> None:
        """A replica has died: even the weights that the others serve are loaded again, where they are asked for."""
        self._folder = None

    def handle(self, number: int) -> Any:
        """Replica `number` in Ray. Raises InfrastructureError while there is none."""
        if not self._handles:
            raise InfrastructureError("the policy is not served now: its trainer is at work")
        return self._handles[number]

    async def load(self, folder: Path) -> None:
        """Have all replicas serve the weights in `folder`, the run's model or a checkpoint's `hf`; asked by each of
        them, done once. Raises ConfigError or InfrastructureError if they cannot."""
        async with self._loading:
            if self._folder != folder:
                self.rest()
                self._handles = await asyncio.to_thread(main_ppo.serve, self._beginning_with(folder))
                self._folder = folder

    def _beginning_with(self, folder: Path) -> TrainJob:
        if folder == Path(self._begins.base_model):
            return self._begins.model_copy(update={"resume": None})
        if folder.name != "hf" or not (folder.parent / "state.json").is_file():
            raise ConfigError(
                f"{folder}: a trainer serves its run's model or one of its checkpoints, and this is neither"
            )
        return self._begins.model_copy(update={"resume": str(folder.parent)})


class Replica:
    """One of them, as what samples behind an HTTP server. `folder` has the model's configuration."""

    def __init__(self, front: Front, number: int, folder: Path, version: str) -> None:
        # Imported only here: it brings torch's models, and a process that trains without serving needs none of it.
        from training.engines._decoder import stop_tokens

        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        self.stop_token_ids = stop_tokens(folder, config)
        self.vocab_size = int(config.vocab_size)
        self.version = version
        self._front = front
        self._number = number
        self._open = asyncio.Event()
        self._open.set()
        self._running: set[str] = set()

    @property
    def paused(self) -> bool:
        return not self._open.is_set()

    async def generate(self, prompt: np.ndarray, params: Params) -> Generated:
        from ray.exceptions import RayActorError
        from ray.exceptions import RayError

        await self._open.wait()
        handle, request, version = self._front.handle(self._number), uuid.uuid4().hex, self.version
        sampling = {
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "stop_token_ids": sorted(params.stop_token_ids),
            "seed": params.seed,
            "logprobs": True,
        }
        self._running.add(request)
        try:
            found = await handle.generate.remote(
                prompt_ids=prompt.tolist(), sampling_params=sampling, request_id=request
            )
        except asyncio.CancelledError:  # the client is gone
            handle.abort_request.remote(request)
            raise
        except RayError as error:
            if isinstance(error, RayActorError):
                self._front.lost_one()
            raise InfrastructureError(f"replica {self._number} of the trainer: {line_of(error)}") from error
        finally:
            self._running.discard(request)
        return _generated(found, params, version)

    async def pause(self, abort: bool) -> None:
        self._open.clear()
        if abort and self._running:
            handle = self._front.handle(self._number)
            await asyncio.gather(*(handle.abort_request.remote(request) for request in self._running))
        while self._running:
            await asyncio.sleep(0.005)

    async def resume(self) -> None:
        self._open.set()

    async def reload(self, folder: Path) -> None:
        await self._front.load(folder)

    async def forget_prefixes(self) -> None:
        await self._front.handle(self._number).clear_kv_cache.remote()

    async def set_version(self, version: str) -> None:
        self.version = version


def _generated(found: Any, params: Params, version: str) -> Generated:
    """veRL's `TokenOutput`, which does not tell a stop from the end of the tokens allowed."""
    ids = list(found.token_ids)
    if found.stop_reason == "aborted":
        finish = "abort"
    else:
        finish = "stop" if ids and ids[-1] in params.stop_token_ids else "length"
    return Generated(
        token_ids=ids,
        logprobs=list(found.log_probs or ()),
        versions=[version] * len(ids),
        finish=finish,
        cached_tokens=found.extra_fields.get("num_cached_tokens") or 0,
    )
