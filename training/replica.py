"""A rollout replica of veRL's for machines without a GPU: the embedded engine as an actor of Ray, `name: embedded`.

On GPUs veRL serves the policy that it trains by its replicas of vLLM. This one takes the same orders (generate, abort,
sleep, wake up, take weights), so that all that is ours around them runs on a CPU as it does there. It is not vLLM:
asleep, it answers nobody and has forgotten its prefixes, but holds on to its weights until the next come.

Each process of veRL's imports this module with veRL (VERL_USE_EXTERNAL_MODULES).
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica
from verl.workers.rollout.replica import RolloutReplicaRegistry
from verl.workers.rollout.replica import TokenOutput

from training.engines._decoder import CACHE_TOKENS
from training.engines._decoder import MAX_RUNNING
from training.engines._decoder import Decoder
from training.engines._decoder import Generation
from training.engines._http import Params

NAME = "embedded"


class EmbeddedServer:
    """The actor, with the methods of veRL's `vLLMHttpServer` that are called here."""

    def __init__(self, folder: str) -> None:
        torch.set_num_threads(1)
        self._decoder = Decoder(Path(folder), "cpu", MAX_RUNNING, CACHE_TOKENS)
        self._under_way: dict[str, Generation] = {}
        self._asleep = False

    async def generate(self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str) -> TokenOutput:
        """Sample once. `sampling_params` are vLLM's."""
        if self._asleep:
            raise RuntimeError("asleep: the weights are the trainer's now")
        params = Params(
            max_tokens=sampling_params["max_tokens"],
            temperature=sampling_params["temperature"],
            top_p=sampling_params["top_p"],
            stop_token_ids=self._decoder.stop_token_ids.union(sampling_params["stop_token_ids"]),
            seed=sampling_params["seed"],
        )
        generation = Generation(np.array(prompt_ids, np.int32), params)
        self._under_way[request_id] = generation
        try:
            self._decoder.submit(generation)
            found = await asyncio.wrap_future(generation.future)
        finally:
            del self._under_way[request_id]
        return TokenOutput(
            token_ids=found.token_ids,
            log_probs=found.logprobs,
            stop_reason="aborted" if found.finish == "abort" else "completed",
            extra_fields={"num_cached_tokens": found.cached_tokens},
        )

    async def abort_request(self, request_id: str) -> None:
        """Nobody waits for it any more."""
        if request_id in self._under_way:
            self._under_way[request_id].abandoned = True

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """End all there are with what they have; later ones wait for `resume_generation`."""
        await asyncio.wrap_future(self._decoder.pause(abort=True))

    async def resume_generation(self) -> None:
        await asyncio.wrap_future(self._decoder.resume())

    async def sleep(self) -> None:
        self._asleep = True
        await self.clear_kv_cache()

    async def wake_up(self) -> None:
        self._asleep = False

    async def clear_kv_cache(self) -> None:
        await asyncio.wrap_future(self._decoder.forget_prefixes())

    async def load(self, weights: dict[str, np.ndarray]) -> None:
        """Serve these, by their names in a Hugging Face folder."""
        await asyncio.to_thread(self._decoder.load, {name: torch.tensor(value) for name, value in weights.items()})


class EmbeddedReplica(RolloutReplica):
    """One server, on the machine of the trainer."""

    async def launch_servers(self) -> None:
        kind: Any = ray.remote(EmbeddedServer)
        options = kind.options(name=_name(self.replica_rank), num_cpus=0, max_concurrency=self.max_concurrency)
        self._server_handle = options.remote(self.model_config.path)
        self.servers = [self._server_handle]
        self._server_address = _name(self.replica_rank)
        await self._server_handle.resume_generation.remote()  # it has loaded


class EmbeddedRollout(base.BaseRollout):
    """A rank's side of it, in veRL's worker: hands on what the rank has trained."""

    async def resume(self, tags: list[str]) -> None:
        if "kv_cache" in tags:
            await self._server().wake_up.remote()

    async def release(self) -> None:
        await self._server().sleep.remote()

    async def update_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], wire_format: str = "named_tensors", **_: Any
    ) -> None:
        """The rank's weights, rounded as those that are written are."""
        dtype = getattr(torch, self.config.dtype)
        await self._server().load.remote({name: each.detach().to(dtype).float().numpy() for name, each in weights})

    def _server(self) -> Any:
        return ray.get_actor(_name(torch.distributed.get_rank()))


def _name(replica: int) -> str:
    return f"embedded-{replica}"


RolloutReplicaRegistry.register(NAME, lambda: EmbeddedReplica)
base._ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.EmbeddedRollout"  # veRL has no public way for this half
