"""The gateway behind the addon: dialect in, token ids to the policy, dialect out.

Order of one call: read and translate the body → find the chain and the tokens → intent line on disk → ask the engine
→ terminal line on disk → reply. A reply's HTTP status is kept back for a grace period, so that an early failure has
its real status; after that the stream opens and keep-alives hold it; a later failure is the dialect's error event.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable
from collections.abc import Callable
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import replace
from datetime import UTC
from datetime import datetime
from typing import Any

from aiohttp import web

from proxy_addons.auxiliary import auxiliary
from proxy_addons.body import MAX_BODY_BYTES
from proxy_addons.body import read_body
from proxy_addons.chain import Node
from proxy_addons.chain import Placement
from proxy_addons.chain import tools_digest
from proxy_addons.conversation import Finish
from proxy_addons.conversation import Problem
from proxy_addons.conversation import Reply
from proxy_addons.conversation import Request
from proxy_addons.conversation import Usage
from proxy_addons.conversation import message_json
from proxy_addons.dialects import Dialect
from proxy_addons.dialects import Route
from proxy_addons.dialects import find_route
from proxy_addons.engine import Completion
from proxy_addons.engine import Sampling
from proxy_addons.errors import InfrastructureError
from proxy_addons.kinds import with_kind
from proxy_addons.ledger import Ledger
from proxy_addons.live import Live
from proxy_addons.live import LiveRollout
from proxy_addons.records import to_json
from proxy_addons.rendering import Parsed
from proxy_addons.rendering import Rendering

GRACE_S = 5.0
KEEPALIVE_S = 10.0
ROLLOUT_HEADER = "x-openforge-rollout"
SECRET_HEADER = "x-openforge-secret"
CALL_HEADER = "x-openforge-call"

Generate = Callable[[list[int], Sampling], Awaitable[Completion]]


class Gate:
    """Lets calls through to the engine; closes for a weight update and waits until it is empty."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    async def __aenter__(self) -> None:
        await self._open.wait()
        self._inside += 1
        self._empty.clear()

    async def __aexit__(self, *_: object) -> None:
        self._inside -= 1
        if not self._inside:
            self._empty.set()

    async def close(self) -> None:
        """Hold new calls and wait for those inside."""
        self._open.clear()
        await self._empty.wait()

    def open(self) -> None:
        """Let held calls go on."""
        self._open.set()


@dataclass(frozen=True)
class Call:
    """One call on its way: who asks, what, and where it stands in the rollout."""

    rollout: LiveRollout
    number: int
    dialect: Dialect
    request: Request
    placement: Placement
    sampling: Sampling

    @property
    def reply_id(self) -> str:
        return f"{self.rollout.identity.id}-{self.number}"


class Gateway:
    """The aiohttp application and the steps of a call."""

    def __init__(
        self,
        live: Live,
        ledger: Ledger,
        rendering: Rendering,
        generate: Generate,
        secret: str,
        grace_s: float = GRACE_S,
        keepalive_s: float = KEEPALIVE_S,
    ) -> None:
        self.gate = Gate()
        self._live = live
        self._ledger = ledger
        self._rendering = rendering
        self._generate = generate
        self._secret = secret
        self._grace_s = grace_s
        self._keepalive_s = keepalive_s

    def app(self) -> web.Application:
        """The application; serve it on loopback only, with `handler_cancellation=True`."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/r/{rollout}/{path:.*}", self._handle)
        return app

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        if http.headers.get(SECRET_HEADER) != self._secret:
            return web.json_response({"error": "not through the proxy"}, status=403)
        rollout = self._live.get(http.headers.get(ROLLOUT_HEADER, ""))
        path = "/" + http.match_info["path"]
        if rollout is None:
            return web.json_response({"error": "unknown rollout"}, status=404)
        route = find_route(path)
        if route is None or http.method != "POST":
            return auxiliary(http, path)
        dialect = route.dialect
        task = asyncio.current_task()
        assert task is not None
        rollout.busy.add(task)
        try:
            body = await read_body(http, rollout.key)
            request = with_kind(_as_routed(dialect.parse(_json_object(body), http.headers), route))
            if route.purpose == "count":
                return web.json_response(dialect.count_json(len(rollout.trajectory.place(request).prompt_ids)))
            return await self._call(http, rollout, dialect, request, body)
        except Problem as problem:
            return web.json_response(dialect.error_json(problem), status=problem.status)
        finally:
            rollout.busy.discard(task)

    async def _call(
        self, http: web.Request, rollout: LiveRollout, dialect: Dialect, request: Request, body: bytes
    ) -> web.StreamResponse:
        placement = rollout.trajectory.place(request)
        sampling = _sampling(request, rollout, len(placement.prompt_ids), self._rendering.stop_token_ids)
        call = Call(rollout, rollout.calls, dialect, request, placement, sampling)
        rollout.calls += 1
        work = asyncio.ensure_future(self._answer(call, hashlib.sha256(body).hexdigest()))
        try:
            if request.stream:
                return await self._stream(http, call, work)
            reply = await asyncio.shield(work)
        finally:
            if not work.done():  # the harness went away: stop the generation, and let it record that
                work.cancel()
                await asyncio.wait({work})
        return web.json_response(dialect.reply_json(request, reply), headers={CALL_HEADER: str(call.number)})

    async def _answer(self, call: Call, body_sha: str) -> Reply:
        """Record, ask the engine, record what it said. Raises Problem where there is no answer."""
        try:
            await self._record(call, _intent(call, body_sha))
            reply, terminal = await self._ask(call)
        except asyncio.CancelledError:
            await self._record(call, _failed(499, "harness_went_away"))
            raise
        except InfrastructureError as error:
            call.rollout.fail(str(error))
            await self._record(call, _failed(529, "engine_failed"))
            raise Problem("overloaded", "the policy server is away") from error
        except Problem as problem:
            await self._record(call, _failed(problem.status, problem.kind))
            raise
        await self._record(call, terminal)
        return reply

    async def _ask(self, call: Call) -> tuple[Reply, dict[str, Any]]:
        """The reply and its terminal line."""
        limits = call.rollout.limits
        prompt = call.placement.prompt_ids
        if call.number >= limits.max_calls:
            # A valid stop ends the loop of every harness; nothing was sampled and nothing is trained.
            call.rollout.out_of_budget = True
            text = f"Stopped: this rollout's budget of {limits.max_calls} model calls is used up."
            return _reply(call, Parsed(text, "", (), ()), "stop", Usage(len(prompt), 0)), _failed(200, "out_of_calls")
        if call.sampling.max_tokens < 1:
            raise Problem(
                "context_length",
                f"prompt is too long: {len(prompt)} tokens > {limits.max_model_len - 1} maximum",
            )
        async with self.gate:
            completion = await self._generate(prompt, call.sampling)
        parsed = self._rendering.parse(completion.token_ids, prompt, call.request.tools, f"call_{call.number}")
        cut = completion.finish == "length"
        finish: Finish = "length" if cut else "tool_calls" if parsed.tool_calls else "stop"
        reply = _reply(call, parsed, finish, Usage(len(prompt), len(completion.token_ids), completion.cached_tokens))
        call.rollout.trajectory.add(call.placement, reply.message(), Node(call.number, prompt, completion.token_ids))
        return reply, {
            "status": "ok",
            "http_status": 200,
            "finish": finish,
            "sampled_ids": list(completion.token_ids),
            "sampled_logprobs": list(completion.logprobs),
            "logprob_kind": completion.logprob_kind,
            "weight_version": completion.weight_version,
            "usage_prompt": reply.usage.prompt_tokens,
            "usage_completion": reply.usage.completion_tokens,
            "usage_cached": reply.usage.cached_tokens,
            "reply": message_json(reply.message()),
            "findings": [*completion.findings, *parsed.findings, *(["truncated"] if cut else [])],
        }

    async def _record(self, call: Call, fields: dict[str, Any]) -> None:
        kind = "terminal" if "status" in fields else "intent"
        stamp = "ended_at" if kind == "terminal" else "started_at"
        row = {"kind": kind, "call": call.number, stamp: datetime.now(UTC).isoformat(), **fields}
        await asyncio.shield(self._ledger.append(call.rollout.ledger, row))

    async def _stream(self, http: web.Request, call: Call, work: "asyncio.Future[Reply]") -> web.StreamResponse:
        await asyncio.wait({work}, timeout=self._grace_s)
        if work.done():
            work.result()  # a Problem raised here still has its own HTTP status
        response = web.StreamResponse(
            headers={
                "content-type": "text/event-stream",
                "cache-control": "no-cache",
                CALL_HEADER: str(call.number),
            }
        )
        await response.prepare(http)
        stream = call.dialect.open_stream(call.request, call.reply_id, int(time.time()))
        await response.write(stream.start())
        while not work.done():
            await response.write(stream.keepalive())
            await asyncio.wait({work}, timeout=self._keepalive_s)
        try:
            reply = work.result()
        except Problem as problem:
            await response.write(stream.error(problem))
        else:
            for piece in stream.reply(reply):
                await response.write(piece)
        await response.write_eof()
        return response


def _as_routed(request: Request, route: Route) -> Request:
    """The request with what its path says rather than its body."""
    stream = route.purpose == "stream" or request.stream
    return replace(request, stream=stream, model=route.model or request.model)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Problem("bad_request", "the body is not JSON") from error
    if not isinstance(value, dict):
        raise Problem("bad_request", "the body is not a JSON object")
    return value


def _sampling(request: Request, rollout: LiveRollout, prompt: int, stop: tuple[int, ...]) -> Sampling:
    """What the trainer can reproduce: the run's temperature, whatever the harness asks for; max_tokens that fits."""
    limits = rollout.limits
    asked = request.max_tokens if request.max_tokens is not None else limits.max_tokens
    return Sampling(
        max_tokens=min(asked, limits.max_tokens, limits.max_model_len - prompt),
        temperature=limits.temperature,
        stop_token_ids=stop,
    )


def _reply(call: Call, parsed: Parsed, finish: Finish, usage: Usage) -> Reply:
    return Reply(
        id=call.reply_id,
        model=call.request.model,
        content=parsed.content,
        reasoning=parsed.reasoning,
        tool_calls=parsed.tool_calls,
        finish=finish,
        usage=usage,
        created=int(time.time()),
    )


def _failed(http_status: int, finding: str) -> dict[str, Any]:
    return {"status": "error", "http_status": http_status, "findings": [finding]}


def _intent(call: Call, body_sha: str) -> dict[str, Any]:
    placement, request = call.placement, call.request
    return {
        "parent_call": placement.parent.call if placement.parent else None,
        "whole_prefix": placement.whole_prefix,
        "request_key": placement.request_key,
        "agent": request.agent,
        "dialect": call.dialect.NAME,
        "model": request.model,
        "prompt_delta_ids": placement.delta_ids,
        "prompt_prefix_len": placement.prefix_len,
        "sampling": to_json({**asdict(call.sampling), "max_tokens_asked": request.max_tokens}),
        "messages_delta": [message_json(m) for m in placement.new_messages],
        "tools_digest": tools_digest(request.tools),
        "offers_tools": bool(request.tools),
        "request_sha": body_sha,
        "findings": list(placement.findings),
    }
