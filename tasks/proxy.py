"""The recording proxy from the orchestrator's side: start the process, register and end rollouts, pause it."""

import asyncio
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator
from collections.abc import Sequence
from contextlib import AsyncExitStack
from contextlib import asynccontextmanager
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from pydantic import TypeAdapter
from tenacity import AsyncRetrying
from tenacity import retry_if_exception
from tenacity import stop_after_attempt

from proxy_addons.capability import Capability
from proxy_addons.errors import InfrastructureError
from proxy_addons.identity import Rollout
from proxy_addons.live import Limits
from training.child import Child
from training.child import free_ports
from training.child import start_child
from training.policy_server import DRAIN_S

START_S = 180.0
STARTS = 3
_CAPABILITIES = TypeAdapter(list[Capability])


def egress_env(url: str, rollout: Rollout, key: str, trusted: str) -> dict[str, str]:
    """What makes programs go through the egress port at `url`. `trusted` is where they find the certificates.

    Loopback stays direct, for a base URL that leads to the proxy already.
    """
    url = url.replace("://", f"://{rollout.id}:{key}@")
    env = {"HTTPS_PROXY": url, "HTTP_PROXY": url, "NO_PROXY": "127.0.0.1,localhost"}
    certificates = ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
    return env | {name.lower(): value for name, value in env.items()} | dict.fromkeys(certificates, trusted)


def proxy_python(root: Path) -> Path:
    """The interpreter for the proxy: its own environment (Python 3.12, current mitmproxy) if `make setup` made one."""
    own = root / ".venv-proxy" / "bin" / "python"
    return own if own.exists() else Path(sys.executable)


@dataclass(frozen=True)
class Proxy:
    """A running proxy. `address` is where harnesses reach it by a base URL, `egress` as an HTTP proxy or by a base URL;
    `trusted` (PEM) is what a program must trust to use it as a proxy. `log` says where its log is."""

    address: tuple[str, int]
    egress: tuple[str, int]
    trusted: str
    log: str
    _client: httpx.AsyncClient

    async def replica(self, rollout: Rollout) -> "Proxy":
        """The proxy for this rollout, as `tasks.proxies.Proxies` has several: this one."""
        return self

    async def register(
        self,
        rollout: Rollout,
        harness: str,
        key: str,
        calls_path: Path,
        limits: Limits,
        allow_hosts: Sequence[str] = (),
        model_hosts: Sequence[str] = (),
        continues: Rollout | None = None,
    ) -> None:
        """Make the rollout's key and prefix valid, and the hosts that it may ask for (see `proxy_addons.egress`).

        `continues` is a try that was ended with `keep`: its calls are the first ones of this rollout's record.
        """
        body = {
            "run": rollout.run,
            "epoch": rollout.epoch,
            "task": rollout.task,
            "sample": rollout.sample,
            "try_": rollout.try_,
            "harness": harness,
            "key": key,
            "calls_path": str(calls_path.absolute()),
            "limits": asdict(limits),
            "allow_hosts": list(allow_hosts),
            "model_hosts": list(model_hosts),
            "continues": continues.id if continues else None,
        }
        await self._ask("POST", "/rollouts", json=body)

    async def failure(self, rollout: Rollout) -> str:
        """Returns when our side broke under the rollout, with the reason; never returns while all is well."""
        answer = await self._ask("GET", f"/rollouts/{rollout.id}/failure", timeout=None)
        return answer["reason"] or "the rollout was ended elsewhere"

    async def end(self, rollout: Rollout, keep: bool = False) -> dict[str, Any]:
        """Kill the key, write the calls file, and say what was recorded (see `control._write_calls`). With `keep` the
        next try at its slot can go on with it."""
        query = {"keep": "1"} if keep else {}
        return await self._ask("DELETE", f"/rollouts/{rollout.id}", timeout=120, params=query)

    async def abandon(self, run: str) -> None:
        """Kill the keys of what a dead execution of `run` left here; those rollouts are owed again."""
        await self._ask("DELETE", f"/runs/{run}", timeout=120)

    async def rendering(self) -> dict[str, Any]:
        """How the policy's template treats a conversation that grows (see `proxy_addons.stability`)."""
        return await self._ask("GET", "/rendering")

    async def pause(self) -> None:
        """Hold new calls; returns when none is inside the engine."""
        await self._ask("POST", "/pause", timeout=DRAIN_S)

    async def resume(self, weight_version: int | None = None) -> dict[str, str]:
        """Let held calls go on. With `weight_version`, only at the engines that show that they serve it: returns the
        reasons by URL of those left out, and raises InfrastructureError, the calls still held, if none serves it."""
        query = {} if weight_version is None else {"weight_version": weight_version}
        return (await self._ask("POST", "/resume", timeout=600, params=query))["left_out"]

    async def capability(self, max_model_len: int) -> list[Capability]:
        """What each engine can do, measured now. Raises InfrastructureError if one does not answer."""
        answer = await self._ask("GET", "/capability", timeout=600, params={"max_model_len": max_model_len})
        return _CAPABILITIES.validate_python(answer["engines"])

    async def _ask(self, method: str, path: str, *, timeout: float | None = 30, **body: Any) -> dict[str, Any]:
        try:
            answer = await self._client.request(method, path, timeout=timeout, **body)
        except httpx.HTTPError as error:
            raise InfrastructureError(
                f"the proxy does not answer ({type(error).__name__}); its log is {self.log}"
            ) from error
        if answer.is_error:
            raise InfrastructureError(f"proxy: {method} {path}: {answer.json().get('error')}")
        return answer.json()


@dataclass(frozen=True)
class OwnProxy(Proxy):
    """A proxy that we started."""

    child: Child


@asynccontextmanager
async def running_proxy(python: Path, engines: list[str], model: Path, log: Path) -> AsyncIterator[OwnProxy]:
    """A proxy process in front of the policy servers at these URLs, for the time of the block.

    Raises InfrastructureError if it does not come up.
    """
    starts = AsyncRetrying(stop=stop_after_attempt(STARTS), retry=retry_if_exception(_lost_a_port), reraise=True)
    async with AsyncExitStack() as stack:
        async for start in starts:
            with start:
                proxy = await stack.enter_async_context(_process(python, engines, model, log))
        yield proxy


@asynccontextmanager
async def _process(python: Path, engines: list[str], model: Path, log: Path) -> AsyncIterator[OwnProxy]:
    port, control, egress = free_ports(3)
    token = secrets.token_urlsafe(32)
    argv = [str(python), "-m", "proxy_addons", "--port", str(port), "--control-port", str(control)]
    argv += ["--egress-port", str(egress)]
    argv += ["--model", str(model.absolute()), *(f"--engine={url}" for url in engines)]
    child = start_child(argv, log, env={**os.environ, "OPENFORGE_PROXY_TOKEN": token, "OMP_NUM_THREADS": "1"})
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{control}",
            headers={"authorization": f"Bearer {token}"},
            limits=httpx.Limits(max_connections=None),
        ) as client:
            trusted = await _healthy(client, child)
            yield OwnProxy(("127.0.0.1", port), ("127.0.0.1", egress), trusted, str(log), client, child)
    finally:
        await asyncio.to_thread(child.stop)


def _lost_a_port(error: BaseException) -> bool:
    """Whether another program took one of the proxy's ports in the seconds that it takes to start."""
    return isinstance(error, InfrastructureError) and "address already in use" in str(error)


async def _healthy(client: httpx.AsyncClient, child: Child) -> str:
    """The authorities that it trusts, once all its ports are open."""
    deadline = time.monotonic() + START_S
    while True:
        if not child.alive():
            raise InfrastructureError(f"the proxy ended while starting: {child.last_lines()}")
        try:
            (await client.get("/health")).raise_for_status()
            return (await client.get("/trusted.pem")).raise_for_status().text
        except httpx.HTTPError as error:  # or another's proxy has the port, and refuses us
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"the proxy is not up after {START_S:.0f} s; its log is {child.log}"
                ) from error
        await asyncio.sleep(0.1)
