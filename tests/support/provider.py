"""Somebody's API on loopback, whose answers are a function of what is asked."""

from collections.abc import AsyncIterator
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from aiohttp import web

Say = Callable[[str, str], "str | int | dict[str, Any]"]
"""From system and last user text to the answer's text, a status to fail with, or a whole answer (OpenAI's form)."""


@dataclass
class Fake:
    """The API. `asked` are the bodies it got, `keys` the keys."""

    say: Say
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    url: str = ""

    async def openai(self, http: web.Request) -> web.Response:
        body = await self._note(http, http.headers.get("authorization", "").removeprefix("Bearer "))
        system = next((turn["content"] for turn in body["messages"] if turn["role"] == "system"), "")
        user = [turn["content"] for turn in body["messages"] if turn["role"] == "user"][-1]
        usage = {"prompt_tokens": 1000, "completion_tokens": 10}
        return self._answer(system, user, lambda text: {"choices": [{"message": {"content": text}}], "usage": usage})

    async def anthropic(self, http: web.Request) -> web.Response:
        body = await self._note(http, http.headers.get("x-api-key", ""))
        usage = {"input_tokens": 1000, "output_tokens": 10}
        blocks = [block for turn in body["messages"] if turn["role"] == "user" for block in turn["content"]]
        return self._answer(
            body.get("system", ""),
            blocks[-1].get("text", ""),
            lambda text: {"content": [{"type": "text", "text": text}], "usage": usage},
        )

    async def _note(self, http: web.Request, key: str) -> Any:
        self.keys.append(key)
        self.asked.append(await http.json())
        return self.asked[-1]

    def _answer(self, system: str, user: str, form: Callable[[str], dict[str, Any]]) -> web.Response:
        said = self.say(system, user)
        if isinstance(said, int):
            return web.Response(status=said, text=f"no, {self.keys[-1]}", headers={"retry-after": "0"})
        return web.json_response(said if isinstance(said, dict) else form(said))


@asynccontextmanager
async def provider(say: Say) -> AsyncIterator[Fake]:
    """The API for the time of the block."""
    fake = Fake(say)
    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", fake.openai), web.post("/v1/messages", fake.anthropic)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield fake
    finally:
        await runner.cleanup()
