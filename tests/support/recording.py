"""A whole proxy in this process, over real sockets, with one call to register a rollout and one to end it."""

import asyncio
import atexit
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from proxy_addons import records
from proxy_addons.__main__ import serve
from proxy_addons.findings import FINDINGS
from proxy_addons.live import Limits
from training.child import free_ports

TOKEN = "control-token"


@dataclass
class Recording:
    port: int
    egress: int
    control: httpx.AsyncClient
    folder: Path
    keys: dict[str, str] = field(default_factory=dict)

    async def register(
        self,
        task: str = "toy",
        *,
        harness: str = "test",
        allow_hosts: tuple[str, ...] = (),
        model_hosts: tuple[str, ...] = (),
        try_: int = 0,
        continues: str | None = None,
        **limits: Any,
    ) -> str:
        body: dict[str, Any] = {"run": "r", "epoch": 1, "task": task, "sample": 0, "try_": try_, "harness": harness}
        body |= {"continues": continues}
        rollout = f"r-e001-{task}-s00-t{try_}"
        self.keys[rollout] = f"secret-key-of-{task}"
        body |= {"key": self.keys[rollout], "calls_path": str(self.folder / f"{rollout}.parquet")}
        body |= {"allow_hosts": allow_hosts, "model_hosts": model_hosts}
        answer = await self.control.post("/rollouts", json=body | {"limits": asdict(Limits(**limits))})
        assert answer.status_code == 201, answer.text
        return rollout

    async def end(self, rollout: str, **query: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        answer = await self.control.delete(f"/rollouts/{rollout}", params=query)
        assert answer.status_code == 200, answer.text
        assert {code.split(":")[0] for code in answer.json()["findings"]} <= set(FINDINGS)
        return answer.json(), records.read(answer.json()["calls_path"], records.CALLS)

    def client(self, rollout: str, key: str | None = None) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}/r/{rollout}",
            headers={"authorization": f"Bearer {key or self.keys[rollout]}"},
            timeout=20,
        )


@cache
def _confdir() -> str:
    """mitmproxy's own files, its CA among them: to make its key takes longer than most tests."""
    folder = tempfile.TemporaryDirectory(prefix="openforge-test-proxy-")
    atexit.register(folder.cleanup)
    return folder.name


@asynccontextmanager
async def recording(
    model: Path, engine_url: str, folder: Path, *replicas: str, trust: Path | None = None
) -> AsyncIterator[Recording]:
    port, control_port, egress = free_ports(3)
    engines = [engine_url, *replicas]
    # mitmproxy remembers what a file of authorities holds by the file's name, so another set has a folder of its own.
    confdir = _confdir() if trust is None else str(folder / "conf")
    server = asyncio.ensure_future(serve(port, control_port, engines, model, TOKEN, confdir, egress, trust))
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{control_port}", headers=headers, timeout=20) as control:
        while True:
            try:
                (await control.get("/health")).raise_for_status()
                break
            except httpx.HTTPError:
                assert not server.done(), server
                await asyncio.sleep(0.02)
        try:
            yield Recording(port, egress, control, folder)
        finally:
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)
