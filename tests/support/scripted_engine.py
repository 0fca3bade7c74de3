"""A policy server that says what a test tells it to, over the real wire, and remembers what it was asked."""

import asyncio
from collections.abc import AsyncIterator
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from aiohttp import web

Script = Callable[[list[int], int], "list[int] | web.Response"]
"""From prompt ids and the number of the call to the sampled ids, or a whole HTTP answer."""


@dataclass
class ScriptedEngine:
    script: Script
    delay_s: float = 0.0
    asked: list[dict[str, Any]] = field(default_factory=list)
    cancelled: int = 0
    running: int = 0
    url: str = ""
    version: int = 0
    max_model_len: int | None = None

    expand: Callable[[dict[str, Any]], list[int]] | None = None
    """From a request with images to the prompt as the engine's own processor expands it."""

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "max_model_len": self.max_model_len}]})

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        number = len(self.asked)
        self.asked.append(body)
        self.running += 1
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        answer = self.script(body["token_ids"], number)
        told: dict[str, Any] = (
            {"prompt_token_ids": self.expand(body)} if self.expand and body.get("return_token_ids") else {}
        )
        return answer if isinstance(answer, web.Response) else self.completion(answer, **told)

    def completion(self, ids: list[int], finish: str = "stop", **told: Any) -> web.Response:
        choice = {
            "token_ids": ids,
            "finish_reason": finish,
            "logprobs": {"content": [{"token_id": t, "logprob": -0.25} for t in ids]},
            "weight_versions": [{"version": self.version, "start": 0, "end": len(ids)}],
        }
        return web.json_response({"choices": [choice], "usage": {"completion_tokens": len(ids)}, **told})


@asynccontextmanager
async def serving(engine: ScriptedEngine) -> AsyncIterator[ScriptedEngine]:
    app = web.Application(client_max_size=64 << 20)
    app.add_routes([web.post("/inference/v1/generate", engine._generate), web.get("/v1/models", engine._models)])
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()
