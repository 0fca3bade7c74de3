"""A scripted model server for tests: it answers shell commands, then a closing sentence, in every dialect of ours."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from aiohttp import web

from proxy_addons.conversation import Finish
from proxy_addons.conversation import Problem
from proxy_addons.conversation import Reply
from proxy_addons.conversation import Request
from proxy_addons.conversation import ToolCall
from proxy_addons.conversation import Usage
from proxy_addons.dialects import find_route
from tasks.teacher import last_turn
from tasks.teacher import shell_call


@dataclass
class Stub:
    """`commands` are run one after the other. `problem` is answered to every call; `cut` ends every reply early.

    `requests` are the bodies it got, `paths` where they were sent.
    """

    commands: tuple[str, ...] = ("echo done > made.txt",)
    problem: Problem | None = None
    cut: bool = False
    delay_s: float = 0.0
    port: int = 0
    paths: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        self.requests.append(body)
        self.paths.append(http.path)
        await asyncio.sleep(self.delay_s)
        route = find_route("/" + http.path.split("/", 3)[3])
        assert route is not None
        dialect = route.dialect
        if self.problem:
            return web.json_response(dialect.error_json(self.problem), status=self.problem.status)
        request = dialect.parse(body, http.headers)
        if route.purpose != "stream" and not request.stream:
            return web.json_response(dialect.reply_json(request, self._reply(request)))
        stream = dialect.open_stream(request, f"r{len(self.requests)}", 0)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(http)
        for data in (stream.start(), *stream.reply(self._reply(request))):
            await response.write(data)
        return response

    def _reply(self, request: Request) -> Reply:
        done = sum(message.role == "tool" for message in request.messages)
        last = last_turn("The file is there.", request.messages, request.tools)
        calls = () if self.cut else last.tool_calls
        if done < len(self.commands) and not self.cut:
            calls = (ToolCall(f"call_{done}", *shell_call(request.tools, self.commands[done])),)
        finish: Finish = "length" if self.cut else "tool_calls" if calls else "stop"
        return Reply(
            id=f"r{len(self.requests)}",
            model=request.model,
            content="" if calls else "The file is there.",
            reasoning="",
            tool_calls=calls,
            finish=finish,
            usage=Usage(10, 5),
            created=0,
        )


@asynccontextmanager
async def serving(stub: Stub) -> AsyncIterator[Stub]:
    """`stub` listening on a free port of loopback, below any rollout's prefix (/r/ROLLOUT)."""
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/r/{tail:.*}", stub.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stub.port = runner.addresses[0][1]
    try:
        yield stub
    finally:
        await runner.cleanup()
