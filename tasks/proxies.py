"""The proxies of a cluster from the orchestrator's side: they run already, are several, and share nothing.

A rollout has one of them for its life. What concerns all rollouts, such as new weights, is asked of every one.
"""

import asyncio
import socket
import time
import zlib
from collections.abc import AsyncIterator
from collections.abc import Sequence
from contextlib import AsyncExitStack
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from proxy_addons.capability import Capability
from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from proxy_addons.identity import Rollout
from tasks.proxy import Proxy

TOKEN = "OPENFORGE_PROXY_TOKEN"
"""Environment variable with the password of the control ports."""
ATTACH_S = 60.0
"""How long a proxy that runs already may take to answer first."""


@dataclass(frozen=True)
class Proxies:
    """Running proxies with the same model in front of the same engines."""

    replicas: tuple[Proxy, ...]

    async def replica(self, rollout: Rollout) -> Proxy:
        """The rollout's own: a group's rollouts are spread, and a new try goes to another one than the last.

        Its address is a number, because a rollout's pod has no name server, and asked for each time, because a proxy
        that was started again has another. Raises InfrastructureError if it has none.
        """
        group = zlib.crc32(f"{rollout.run} {rollout.epoch} {rollout.task}".encode())
        proxy = self.replicas[(group + rollout.sample + rollout.try_) % len(self.replicas)]
        host, port = proxy.address
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise InfrastructureError(f"the proxy {host} has no address ({error.strerror}); is it up?") from error
        return replace(proxy, address=(str(found[0][4][0]), port))

    async def rendering(self) -> dict[str, Any]:
        """How the policy's template treats a conversation that grows; all have the same."""
        return await self.replicas[0].rendering()

    async def pause(self) -> None:
        """Hold new calls everywhere; returns when none is inside an engine."""
        await asyncio.gather(*(each.pause() for each in self.replicas))

    async def resume(self, weight_version: int | None = None) -> dict[str, str]:
        """As `Proxy.resume`, everywhere."""
        left_out = await asyncio.gather(*(each.resume(weight_version) for each in self.replicas))
        return {url: reason for each in left_out for url, reason in each.items()}

    async def capability(self, max_model_len: int) -> list[Capability]:
        """What each engine can do, measured through every proxy, told once an engine."""
        found = await asyncio.gather(*(each.capability(max_model_len) for each in self.replicas))
        return list({each.engine: each for several in found for each in several}.values())


@asynccontextmanager
async def attached_proxies(
    hosts: Sequence[str], port: int, control_port: int, token: str, run: str, model: Path, start_s: float = ATTACH_S
) -> AsyncIterator[Proxies]:
    """The proxies at `hosts`, for the time of the block; rollouts that a dead execution of `run` left there are ended.

    Raises InfrastructureError if one does not answer, ConfigError if it refuses `token` or renders for another model.
    """
    async with AsyncExitStack() as stack:
        proxies = []
        for host in hosts:
            client = await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=f"http://{host}:{control_port}",
                    headers={"authorization": f"Bearer {token}"},
                    limits=httpx.Limits(max_connections=None),
                )
            )
            name = f"{host}:{control_port}"
            await _answers(client, name, start_s)
            # No egress port: what a task allows by it is refused before anything starts.
            proxy = Proxy((host, port), (host, port), "", f"that of the pod {host.split('.')[0]}", client)
            renders = (await proxy.rendering())["model"]
            if renders != str(model):
                raise ConfigError(
                    f"model: the proxy {name} renders for {renders}, the run asks for {model}; give both the same "
                    "(--model in deploy/kubernetes/base/proxy.yaml)"
                )
            await proxy.abandon(run)
            proxies.append(proxy)
        yield Proxies(tuple(proxies))


async def _answers(client: httpx.AsyncClient, name: str, start_s: float) -> None:
    deadline = time.monotonic() + start_s
    while True:
        try:
            answer = await client.get("/health")
            if answer.status_code != 503:
                break
            why = "it is starting"
        except httpx.TransportError as error:
            why = type(error).__name__
        if time.monotonic() > deadline:
            raise InfrastructureError(
                f"the proxy {name} does not answer ({why}): is it up, and is kubernetes.proxies right? "
                "`make doctor PROFILE=kubernetes` looks"
            )
        await asyncio.sleep(0.5)
    if answer.status_code == 401:
        raise ConfigError(f"the proxy {name} refuses {TOKEN}; it must be what the proxy was started with")
    answer.raise_for_status()
