"""Two proxies that run already, as real processes at two addresses, over a scripted engine."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from contextlib import AsyncExitStack
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from proxy_addons.identity import Rollout
from proxy_addons.live import Limits
from tasks.proxies import TOKEN
from tasks.proxies import Proxies
from tasks.proxies import attached_proxies
from tasks.proxy import Proxy
from tasks.proxy import proxy_python
from tasks.run import ROOT
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from tests.support.toy_model import make_toy_model
from training.child import free_port
from training.child import free_ports
from training.child import start_child

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

HOSTS = ("127.0.0.1", "127.0.0.2")


@dataclass(frozen=True)
class Running:
    port: int
    control: int
    model: Path
    engine: ScriptedEngine

    def attach(
        self, run: str = "r", token: str = "right", model: Path | None = None
    ) -> AbstractAsyncContextManager[Proxies]:
        return attached_proxies(HOSTS, self.port, self.control, token, run, model or self.model)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Running]:
    port, control = free_ports(2)
    model = make_toy_model(folder / "model")
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(serving(ScriptedEngine(lambda prompt, n: [72, 73], version=3)))
        for host in HOSTS:
            argv = [str(proxy_python(ROOT)), "-m", "proxy_addons", "--host", host, "--port", str(port)]
            argv += ["--control-port", str(control), "--engine", engine.url, "--model", str(model)]
            child = start_child(argv, folder / f"{host}.log", os.environ | {TOKEN: "right"}, ROOT)
            stack.push_async_callback(asyncio.to_thread, child.stop)
        yield Running(port, control, model, engine)


async def ask(proxy: Proxy, rollout: Rollout, key: str) -> int:
    url = f"http://{proxy.address[0]}:{proxy.address[1]}/r/{rollout.id}/v1/chat/completions"
    body = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
    async with httpx.AsyncClient(timeout=30) as client:
        return (await client.post(url, json=body, headers={"authorization": f"Bearer {key}"})).status_code


async def test_they_are_attached_to_asked_together_and_cleared(tmp_path: Path) -> None:
    async with running(tmp_path) as there:
        async with there.attach() as proxies:
            assert await proxies.resume(3) == {}
            (engine,) = await proxies.capability(128)
            assert (engine.engine, engine.weight_version) == (there.engine.url, 3)
            rollouts = [Rollout("r", 1, "sum", sample) for sample in range(2)]
            own = [await proxies.replica(rollout) for rollout in rollouts]
            assert {proxy.address for proxy in own} == {(host, there.port) for host in HOSTS}
            for proxy, rollout in zip(own, rollouts, strict=True):
                path = tmp_path / f"{rollout.id}.parquet"
                await proxy.register(rollout, "test", f"key-{rollout.sample}", path, Limits(max_model_len=128))
                assert await ask(proxy, rollout, f"key-{rollout.sample}") == 200
            await proxies.pause()
            held = [
                asyncio.create_task(ask(proxy, rollout, f"key-{rollout.sample}"))
                for proxy, rollout in zip(own, rollouts, strict=True)
            ]
            await asyncio.sleep(0.5)
            assert not any(task.done() for task in held)
            await proxies.resume(3)
            assert await asyncio.gather(*held) == [200, 200]
        # An execution that died left them live; another run's stay, its own next one's are ended.
        async with there.attach("other"):
            assert await ask(own[0], rollouts[0], "key-0") == 200
        async with there.attach() as proxies:
            assert [await ask(proxy, rollout, "key-0") for proxy, rollout in zip(own, rollouts, strict=True)] == [
                404,
                404,
            ]
            again = await proxies.replica(rollouts[0])
            await again.register(rollouts[0], "test", "new", tmp_path / "again.parquet", Limits(max_model_len=128))
            assert (await again.end(rollouts[0]))["calls"] == 0
        with pytest.raises(ConfigError, match=f"the proxy 127.0.0.1:{there.control} refuses {TOKEN}"):
            async with there.attach(token="wrong"):
                pass
        with pytest.raises(ConfigError, match=f"renders for {there.model}, the run asks for /runs/models/other"):
            async with there.attach(model=Path("/runs/models/other")):
                pass


async def test_one_that_does_not_answer_is_named() -> None:
    port = free_port()
    with pytest.raises(InfrastructureError, match=rf"the proxy 127.0.0.1:{port} does not answer \(ConnectError\)"):
        async with attached_proxies(HOSTS, port, port, "t", "r", Path("/m"), start_s=0.2):
            pass


async def test_groups_are_spread_and_a_new_try_goes_elsewhere() -> None:
    async with httpx.AsyncClient() as client:
        proxies = Proxies(tuple(Proxy((host, 1), (host, 1), "", "", client) for host in (*HOSTS, "127.0.0.3")))
        group = [Rollout("r", 2, "sum", sample) for sample in range(6)]
        chosen = [(await proxies.replica(rollout)).address[0] for rollout in group]
        assert set(Counter(chosen).values()) == {2}
        assert [(await proxies.replica(rollout)).address[0] for rollout in group] == chosen
        for rollout, before in zip(group, chosen, strict=True):
            assert (await proxies.replica(rollout.next_try())).address[0] != before
        lost = Proxies((Proxy(("proxy-0.nowhere.invalid", 1), ("", 1), "", "", client),))
        with pytest.raises(InfrastructureError, match=r"the proxy proxy-0\.nowhere\.invalid has no address"):
            await lost.replica(group[0])
