"""`--host`: a pod's proxy is reached from other pods; without it nobody but this machine's loopback gets an answer."""

import asyncio
import os
import socket
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

MODEL = Path(__file__).parents[2] / "models" / "tiny"
OTHER = "127.0.0.2"
"""An address of this machine that is not the one that the proxy takes by default."""


def _free() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("options", [["--host", "0.0.0.0"], []], ids=["everywhere", "loopback"])
async def test_who_gets_an_answer(options: list[str]) -> None:
    port, control = _free(), _free()
    argv = ["-m", "proxy_addons", *options, "--port", str(port), "--control-port", str(control)]
    argv += ["--engine", "http://127.0.0.1:1", "--model", str(MODEL)]
    env = {**os.environ, "OPENFORGE_PROXY_TOKEN": "token"}
    process = await asyncio.create_subprocess_exec(sys.executable, *argv, env=env, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout
        async for line in process.stdout:
            if b"listening" in line:
                break
        found = {}
        async with httpx.AsyncClient() as client:
            for name, host, to in (("near", "127.0.0.1", port), ("far", OTHER, port), ("control", OTHER, control)):
                try:
                    found[name] = (await client.get(f"http://{host}:{to}/health")).status_code
                except httpx.ConnectError:
                    found[name] = 0
    finally:
        process.terminate()
        await process.wait()
    assert found == {"near": 404, "far": 404 if options else 0, "control": 401 if options else 0}
