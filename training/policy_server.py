"""The policy server from the orchestrator's side: start the process, check what it serves, give it new weights.

    async with running_policy_server("embedded", base, logs / "policy.log", 16_384) as policy:
        ...                                # policy.url serves `base` as version 0
        await policy.reload(checkpoint, 1)

Nothing is believed: at the start and after each reload a probe is sampled through the proxy's own client, and its
logprobs must be those that transformers computes from the folder. Otherwise a rollout could be recorded under weights
that are not the ones it names (vLLM on a CPU, for one, keeps a stale head for tied embeddings and answers 200).
"""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from safetensors import SafetensorError
from safetensors import safe_open

from proxy_addons.conversation import Problem
from proxy_addons.engine import EngineClient
from proxy_addons.engine import Sampling
from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from proxy_addons.wire import Connections
from training import engines
from training.child import Child
from training.child import free_port
from training.child import start_child

ROOT = Path(__file__).resolve().parents[1]
TOLERANCE = 1e-3
"""Largest difference of a served logprob from transformers' in float32."""
BF16_TOLERANCE = 0.1
"""The same, of one that is computed in bfloat16. Not measured on GPUs."""
DRAIN_S = 1800.0
"""How long a reload waits for the requests under way."""
ATTACH_S = 60.0
"""How long a policy server that runs already may take to answer first."""
_PROBE_TOKENS = 8
_PROBE_TEMPERATURE = 0.5  # not 1, so that logprobs from before temperature give themselves away

Shapes = dict[str, tuple[int, ...]]


class PolicyServer:
    """A running policy server. `version` is the version of the weights that it serves.

    `child` is its process, None for one that somebody else started.
    """

    def __init__(
        self,
        url: str,
        child: Child | None,
        folder: Path,
        session: aiohttp.ClientSession,
        tolerance: float = TOLERANCE,
    ) -> None:
        self.url = url
        self.child = child
        self.folder = folder
        self.version = 0
        self._session = session
        self._tolerance = tolerance

    async def wait_ready(self, start_s: float) -> None:
        """Return when it answers. Raises InfrastructureError with the log's last lines if it died or took too long."""
        deadline = asyncio.get_running_loop().time() + start_s
        while True:
            if self.child and not self.child.alive():
                raise InfrastructureError(f"policy server ended while starting: {self.child.last_lines()}")
            if await self._healthy():
                return
            if asyncio.get_running_loop().time() > deadline:
                last = self.child.last_lines() if self.child else f"nothing answers at {self.url}/health"
                raise InfrastructureError(f"policy server not up after {start_s:.0f} s: {last}")
            await asyncio.sleep(0.2)

    async def _healthy(self) -> bool:
        try:
            async with self._session.get(f"{self.url}/health", timeout=aiohttp.ClientTimeout(total=5)) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def check(self) -> None:
        """Name the weights and see by a probe that they are served. Raises InfrastructureError if they are not."""
        await self._name(self.version)
        await self._verify(self.folder, self.version)

    async def reload(self, folder: Path, version: int) -> None:
        """Serve the weights in `folder` as `version`, once the requests under way have ended under the old ones.

        Raises ConfigError, and goes on serving the old weights, if the folder is not fit to be loaded. Raises
        InfrastructureError, and serves nothing more, if the server did not end up with those weights.
        """
        await asyncio.to_thread(check_replacement, folder, self.folder)
        try:
            await self._ask("POST", "/pause?mode=wait")
            rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            await self._ask("POST", "/collective_rpc", rpc)
            await self._ask("POST", "/reset_prefix_cache")
            await self._name(version)
            await self._ask("POST", "/resume")  # a paused vLLM would not answer the probe
            await self._verify(folder, version)
        except InfrastructureError:
            await self._stop_serving()
            raise
        self.folder, self.version = folder, version

    async def _name(self, version: int) -> None:
        await self._ask("POST", "/update_weight_version", {"new_version": str(version)})

    async def _verify(self, folder: Path, version: int) -> None:
        """Sample a probe and compare ids, logprobs and version with what `folder` must give."""
        vocab = _shapes(folder)["lm_head.weight"][0]
        prompt = [(11 + 7919 * i) % vocab for i in range(24)]
        sampling = Sampling(max_tokens=_PROBE_TOKENS, temperature=_PROBE_TEMPERATURE, seed=version)
        try:
            async with Connections() as connections:
                got = await EngineClient(self.url, connections).generate(prompt, sampling)
        except Problem as problem:
            raise InfrastructureError(f"policy server refused the probe: {problem.message}") from problem
        if got.findings:
            raise InfrastructureError(f"policy server cannot be trained from: {', '.join(got.findings)}")
        if got.weight_version != version:
            raise InfrastructureError(f"policy server names weights {got.weight_version}, not {version}")
        sampled = list(got.token_ids)
        processed = await asyncio.to_thread(_reference, folder, prompt, sampled, _PROBE_TEMPERATURE)
        if _distance(got.logprobs, processed) > self._tolerance:
            raw = await asyncio.to_thread(_reference, folder, prompt, sampled, 1.0)
            if _distance(got.logprobs, raw) <= self._tolerance:
                raise InfrastructureError("policy server gives logprobs from before temperature; training needs after")
            raise InfrastructureError(
                f"policy server does not serve the weights in {folder}: a logprob of the probe is off by "
                f"{_distance(got.logprobs, processed):.2g}, allowed is {self._tolerance:g}; restart the run"
            )

    async def _stop_serving(self) -> None:
        try:
            await self._ask("POST", "/pause?mode=abort")
        except InfrastructureError:
            if self.child:
                self.child.stop()  # it does not listen, so it must not go on answering others either

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        try:
            async with self._session.request(
                method, self.url + path, json=body, timeout=aiohttp.ClientTimeout(total=DRAIN_S)
            ) as answer:
                text = await answer.text()
                if answer.status != 200:
                    raise InfrastructureError(f"policy server: {path} answered {answer.status}: {text[:500]}")
                return json.loads(text) if text else None
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise InfrastructureError(
                f"policy server at {self.url}: {path}: {type(error).__name__}: {error}"
            ) from error


@asynccontextmanager
async def running_policy_server(
    kind: str, model_dir: Path, log: Path, max_model_len: int, port: int | None = None
) -> AsyncIterator[PolicyServer]:
    """A policy server of `kind` (a name in `training.engines`) for the time of the block, serving `model_dir` as
    version 0 on loopback, its weights checked.

    Raises ConfigError for a folder or port that cannot be used, InfrastructureError if the server does not come up.
    """
    await asyncio.to_thread(check_folder, model_dir)
    port = free_port() if port is None else port
    check_port(port)
    launch = engines.load(kind).launch(model_dir, port, max_model_len)
    child = start_child(launch.argv, log, {**os.environ, **launch.env}, cwd=ROOT)
    try:
        async with aiohttp.ClientSession() as session:
            server = PolicyServer(f"http://127.0.0.1:{port}", child, model_dir, session)
            await server.wait_ready(launch.start_s)
            await server.check()
            yield server
    finally:
        await asyncio.to_thread(child.stop)


@asynccontextmanager
async def attached_policy_server(
    url: str, model_dir: Path, start_s: float = ATTACH_S, tolerance: float = TOLERANCE
) -> AsyncIterator[PolicyServer]:
    """The policy server that runs already at `url`, for the time of the block.

    It may serve an earlier run's weights, so its version is unknown (-1) until the first `reload`; `model_dir` has the
    shapes that it must have.

    Raises ConfigError for a folder that cannot be used, InfrastructureError if nothing answers.
    """
    await asyncio.to_thread(check_folder, model_dir)
    async with aiohttp.ClientSession() as session:
        server = PolicyServer(url, None, model_dir, session, tolerance)
        server.version = -1
        await server.wait_ready(start_s)
        yield server


def check_port(port: int) -> None:
    """Raise ConfigError if the port on loopback is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"policy server port {port}: {error.strerror}; choose another port") from error


def check_folder(folder: Path) -> Shapes:
    """The shapes of the folder's tensors. Raises ConfigError if a server could not load it or would load it wrong."""
    try:
        config = json.loads((folder / "config.json").read_text())
        shapes = _shapes(folder)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ConfigError(f"{folder}: not a whole model folder: {type(error).__name__}: {error}") from error
    if config.get("tie_word_embeddings") or "lm_head.weight" not in shapes:
        raise ConfigError(
            f"{folder}: the embeddings are tied, which a reload can get wrong; save the model with "
            "tie_word_embeddings=false and its own lm_head.weight"
        )
    return shapes


def check_replacement(folder: Path, served: Path) -> None:
    """Raise ConfigError if `folder` cannot take the place of `served`: a server may die of a wrong tensor."""
    new, old = check_folder(folder), check_folder(served)
    differ = sorted(name for name in new.keys() | old.keys() if new.get(name) != old.get(name))
    if differ:
        first = differ[0]
        raise ConfigError(
            f"{folder}: not the architecture being served: {first} is {new.get(first, 'absent')}, "
            f"served is {old.get(first, 'absent')} ({len(differ)} tensors differ)"
        )


def _shapes(folder: Path) -> Shapes:
    """Each tensor's shape, read from the files' headers. Raises KeyError if the index names a tensor that is absent."""
    index = folder / "model.safetensors.index.json"
    wanted = json.loads(index.read_text())["weight_map"] if index.exists() else None
    shapes: Shapes = {}
    for name in sorted(set(wanted.values())) if wanted else ["model.safetensors"]:
        with safe_open(folder / name, framework="np") as file:
            shapes.update({key: tuple(file.get_slice(key).get_shape()) for key in file.keys()})  # noqa: SIM118
    return {name: shapes[name] for name in wanted} if wanted else shapes


def _reference(folder: Path, prompt: list[int], sampled: list[int], temperature: float) -> list[float]:
    # Imported only here: the flow's other uses of this module need no torch.
    from training.engines._reference import reference_logprobs

    return reference_logprobs(folder, prompt, sampled, temperature)


def _distance(got: tuple[float | None, ...], wanted: list[float]) -> float:
    """The largest difference; infinite where a logprob is absent."""
    return max(abs(a - b) if a is not None else float("inf") for a, b in zip(got, wanted, strict=True))
