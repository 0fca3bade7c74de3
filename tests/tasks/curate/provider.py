"""A model provider for tests: a small server with both APIs, which answers what a test tells it to."""

from collections.abc import AsyncIterator
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from aiohttp import web

Script = Callable[[str, int], "str | web.Response"]
"""From the question and the number of the call to the answer's text, or a whole HTTP answer."""


@dataclass
class Provider:
    script: Script
    finish: str | None = None
    """Why an answer ends, in the API's own word; None: it is whole."""
    usage: bool = True
    questions: list[str] = field(default_factory=list)
    asked: list[tuple[dict[str, Any], dict[str, str]]] = field(default_factory=list)
    """Bodies and headers."""
    url: str = ""

    async def chat(self, http: web.Request) -> web.Response:
        body, answer = await self._take(http)
        if isinstance(answer, web.Response):
            return answer
        usage = {"usage": {"prompt_tokens": 100, "completion_tokens": 20}} if self.usage else {}
        choice = {"message": {"role": "assistant", "content": answer}, "finish_reason": self.finish or "stop"}
        return web.json_response({"model": body["model"], "choices": [choice], **usage})

    async def messages(self, http: web.Request) -> web.Response:
        body, answer = await self._take(http)
        if isinstance(answer, web.Response):
            return answer
        usage = {"usage": {"input_tokens": 100, "output_tokens": 20}} if self.usage else {}
        content = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": answer}]
        stop = {"stop_reason": self.finish or "end_turn"}
        return web.json_response({"model": body["model"], "content": content, **stop, **usage})

    async def _take(self, http: web.Request) -> tuple[dict[str, Any], "str | web.Response"]:
        body = await http.json()
        self.asked.append((body, {name.lower(): value for name, value in http.headers.items()}))
        self.questions.append(body["messages"][-1]["content"])
        return body, self.script(self.questions[-1], len(self.questions))


@asynccontextmanager
async def serving(provider: Provider) -> AsyncIterator[Provider]:
    """`provider` on a free port of loopback, at `url`."""
    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", provider.chat), web.post("/v1/messages", provider.messages)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    provider.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield provider
    finally:
        await runner.cleanup()
