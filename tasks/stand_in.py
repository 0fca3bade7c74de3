"""What answers in a policy's place, a script or a provider's model: a server process that speaks the engines'
protocol."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from collections.abc import Callable
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from proxy_addons.errors import InfrastructureError
from tasks.provider import Client
from tasks.provider import Provider
from tasks.run import ROOT
from training.child import free_port
from training.child import start_child

START_S = 60.0

StandIn = Callable[[Path, Path], AbstractAsyncContextManager[str]]
"""From the folder of the model whose tokenizer is used, and a log file, to the server's URL for the time of a block."""


def script(name: str) -> StandIn:
    """The script of that name in `tasks.teacher_server`."""
    return lambda model, log: running([sys.executable, "-m", "tasks.teacher_server", "--script", name], model, log)


def provided(provider: Provider) -> StandIn:
    """The provider's model, by `tasks.provider_server`. Raises ConfigError if its key is not set."""
    Client(provider)
    argv = [sys.executable, "-m", "tasks.provider_server", "--provider", provider.model_dump_json()]
    return lambda model, log: running(argv, model, log)


@asynccontextmanager
async def running(argv: Sequence[str], model: Path, log: Path) -> AsyncIterator[str]:
    """The server that `argv` starts. Raises InfrastructureError if it does not come up."""
    port = free_port()
    child = start_child([*argv, "--model", str(model), "--port", str(port)], log, env=os.environ, cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    deadline = asyncio.get_running_loop().time() + START_S
    try:
        async with httpx.AsyncClient() as client:
            while not await _answers(client, url):
                if not child.alive() or asyncio.get_running_loop().time() > deadline:
                    raise InfrastructureError(f"the policy's stand-in did not come up: {child.last_lines()}")
                await asyncio.sleep(0.2)
        yield url
    finally:
        await asyncio.to_thread(child.stop)


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health")).is_success
    except httpx.TransportError:
        return False
