"""The gateway behind the addon: dialect in, token ids to the policy, dialect out.

Order of one call: read and translate the body → find the chain and the tokens → intent line on disk → ask the engine
→ terminal line on disk → reply. A reply's HTTP status is kept back for a grace period, so that an early failure has
its real status; after that the stream opens and keep-alives hold it; a later failure is the dialect's error event.
"""

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from datetime import UTC
from datetime import datetime
from typing import Any

import orjson
from aiohttp import web
from pydantic_core import from_json

from proxy_addons.body import plain_body
from proxy_addons.chain import Placement
from proxy_addons.conversation import Finish
from proxy_addons.conversation import Problem
from proxy_addons.conversation import Reply
from proxy_addons.conversation import Request
from proxy_addons.conversation import Usage
from proxy_addons.conversation import message_json
from proxy_addons.dialects import Dialect
from proxy_addons.dialects import Route
from proxy_addons.engine import Completion
from proxy_addons.engine import Pictures
from proxy_addons.engine import Sampling
from proxy_addons.engine import TokenIds
from proxy_addons.errors import InfrastructureError
from proxy_addons.gate import Gate
from proxy_addons.images import data_url
from proxy_addons.images import show
from proxy_addons.images import shown_images
from proxy_addons.images import store
from proxy_addons.kinds import is_aside
from proxy_addons.kinds import with_kinds
from proxy_addons.ledger import Ledger
from proxy_addons.ledger import die
from proxy_addons.live import Live
from proxy_addons.live import LiveRollout
from proxy_addons.records import to_json
from proxy_addons.rendering import Parsed
from proxy_addons.rendering import Rendering
from proxy_addons.sampling import not_as_asked
from proxy_addons.sampling import pinned

GRACE_S = 5.0
KEEPALIVE_S = 10.0
LOOK_S = 0.5
"""How often it is looked whether the harness of a held call has hung up."""
STREAM_HEADERS = {"content-type": "text/event-stream", "cache-control": "no-cache"}

Generate = Callable[[str, TokenIds, Sampling, Pictures | None], Awaitable[Completion]]
"""Sample once for the rollout of this id, from these prompt ids and the images in them."""


@dataclass(frozen=True)
class Call:
    """One call on its way: who asks, what, and where it stands in the rollout. `before` is how many of its sort were
    before it (`LiveRollout.count`); `gone` tells whether the harness has hung up."""

    rollout: LiveRollout
    number: int
    before: int
    dialect: Dialect
    request: Request
    placement: Placement
    sampling: Sampling
    gone: Callable[[], bool]

    @property
    def reply_id(self) -> str:
        return f"{self.rollout.identity.id}-{self.number}"


@dataclass(frozen=True)
class Answer:
    """A whole HTTP answer. `call` is the number of the model call that it answers, if it is one."""

    status: int
    body: bytes
    content_type: str = "application/json"
    call: int | None = None


@dataclass(frozen=True)
class Waiting:
    """A stream whose answer is not there yet. It is served under its ticket, which nobody can guess."""

    ticket: str
    call: int


@dataclass(eq=False)
class _Pending:
    call: Call
    work: "asyncio.Task[Reply]"


class Gateway:
    """The steps of a call, and the aiohttp application that holds the streams of slow ones."""

    def __init__(
        self,
        live: Live,
        ledger: Ledger,
        rendering: Rendering,
        generate: Generate,
        grace_s: float = GRACE_S,
        keepalive_s: float = KEEPALIVE_S,
    ) -> None:
        self.gate = Gate()
        self._live = live
        self._ledger = ledger
        self._rendering = rendering
        self._generate = generate
        self._grace_s = grace_s
        self._keepalive_s = keepalive_s
        self._waiting: dict[str, _Pending] = {}

    def app(self) -> web.Application:
        """The application for streams that wait; serve it on loopback only, with `handler_cancellation=True`."""
        app = web.Application()
        app.router.add_get("/{ticket}", self._stream)
        return app

    async def handle(
        self, rollout: LiveRollout, route: Route, headers: Mapping[str, str], body: bytes, gone: Callable[[], bool]
    ) -> Answer | Waiting:
        """Answer one request of a live rollout. `gone` tells whether the harness has hung up.

        A request that is no stream is answered whole, however long it takes. A stream is too if its answer comes
        within the grace period: an early failure then has its real status; after that it becomes `Waiting`.
        """
        dialect = route.dialect
        try:
            body = await plain_body(body, headers.get("content-encoding", "identity"), rollout.key)
            fields = _json_object(body)
            read = dialect.parse(fields, headers, rollout.memory)
            request = replace(
                read,
                stream=route.purpose == "stream" or read.stream,
                model=route.model or read.model,
                notes=(*with_kinds(read), *not_as_asked(read, fields, rollout.limits)),
            )
            if self._rendering.sees_images:
                request = show(request)
            placement = await rollout.trajectory.place(request)
            if route.purpose == "count":
                return Answer(200, orjson.dumps(dialect.count_json(len(placement.prompt_ids))))
            return await self._call(rollout, dialect, request, placement, body, gone)
        except Problem as problem:
            return Answer(problem.status, orjson.dumps(dialect.error_json(problem)))

    async def _call(
        self,
        rollout: LiveRollout,
        dialect: Dialect,
        request: Request,
        placement: Placement,
        body: bytes,
        gone: Callable[[], bool],
    ) -> Answer | Waiting:
        if self._live.get(rollout.identity.id) is not rollout:
            raise Problem("not_found", "the rollout has ended")
        stop, left = self._rendering.stop_token_ids, rollout.tokens_left
        sampling = pinned(request, rollout.limits, len(placement.prompt_ids), left, stop)
        number = rollout.calls
        call = Call(rollout, number, rollout.count(is_aside(request)), dialect, request, placement, sampling, gone)
        work = asyncio.create_task(self._answer(call, hashlib.sha256(body).hexdigest()))
        rollout.busy.add(work)
        work.add_done_callback(rollout.busy.discard)
        deadline = time.monotonic() + self._grace_s
        while not work.done():
            if request.stream and time.monotonic() >= deadline:
                ticket = secrets.token_urlsafe(16)
                self._waiting[ticket] = _Pending(call, work)
                return Waiting(ticket, call.number)
            await asyncio.wait({work}, timeout=min(LOOK_S, self._grace_s))
            if gone():
                await _stop(work)
        reply = _result(work)
        if not request.stream:
            return Answer(200, orjson.dumps(dialect.reply_json(request, reply)), call=call.number)
        stream = dialect.open_stream(request, call.reply_id, reply.created)
        return Answer(200, b"".join([stream.start(), *stream.reply(reply)]), "text/event-stream", call.number)

    async def forget(self, ticket: str) -> None:
        """Stop a call whose stream was never fetched. Nothing happens if it was."""
        if pending := self._waiting.pop(ticket, None):
            await _stop(pending.work)

    async def _stream(self, http: web.Request) -> web.StreamResponse:
        pending = self._waiting.pop(http.match_info["ticket"], None)
        if pending is None:
            return web.json_response({"error": "not through the proxy"}, status=404)
        call, work = pending.call, pending.work
        try:
            response = web.StreamResponse(headers=STREAM_HEADERS)
            await response.prepare(http)
            stream = call.dialect.open_stream(call.request, call.reply_id, int(time.time()))
            await response.write(stream.start())
            while not work.done():
                await response.write(stream.keepalive())
                await asyncio.wait({work}, timeout=self._keepalive_s)
            try:
                reply = _result(work)
            except Problem as problem:
                await response.write(stream.error(problem))
            else:
                await response.write(b"".join(stream.reply(reply)))
            await response.write_eof()
        finally:
            await _stop(work)  # the harness went away: stop the generation, and let it record that
        return response

    async def _answer(self, call: Call, body_sha: str) -> Reply:
        """Record, ask the engine, record what it said. Raises Problem where there is no answer."""
        try:
            await _keep_images(call)
            # Not waited for: the terminal line comes after it in the same file, and is on disk before the reply.
            self._ledger.note(call.rollout.ledger, _line("intent", call, _intent(call, body_sha)))
            async with call.rollout.turnstile:
                reply, terminal = await self._ask(call)
        except asyncio.CancelledError:
            await self._record(call, _failed(499, "harness_went_away"))
            raise
        except InfrastructureError as error:
            call.rollout.give_back(is_aside(call.request))
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
        if (spent := call.rollout.spent(call.before)) is not None:
            # A valid stop ends the loop of every harness; nothing was sampled and nothing is trained.
            finding, budget = spent
            call.rollout.out_of_budget = finding
            text = f"Stopped: this rollout's {budget} is used up."
            return _reply(call, Parsed(text, "", (), ()), "stop", Usage(len(prompt), 0)), _failed(200, finding)
        if call.sampling.max_tokens < 1:
            raise Problem(
                "context_length",
                f"prompt is too long: {len(prompt)} tokens > {limits.max_model_len - 1} maximum",
            )
        async with self.gate:
            if call.gone():  # it was held, and nobody waits any more
                raise asyncio.CancelledError
            completion = await self._generate(call.rollout.identity.id, prompt, call.sampling, self._pictures(call))
        call.rollout.sampled_tokens += len(completion.token_ids)
        parsed = self._rendering.parse(completion.token_ids, prompt, call.request.tools, f"call_{call.number}")
        cut = completion.finish == "length"
        cuts = ["truncated"] if cut else []
        if cut and call.rollout.tokens_left == 0:
            call.rollout.out_of_budget = "out_of_tokens"
            cuts.append("out_of_tokens")
        finish: Finish = "length" if cut else "tool_calls" if parsed.tool_calls else "stop"
        reply = _reply(call, parsed, finish, Usage(len(prompt), len(completion.token_ids), completion.cached_tokens))
        call.rollout.trajectory.add(call.placement, reply.message(), call.number, completion.token_ids)
        return reply, {
            "status": "ok",
            "http_status": 200,
            "finish": finish,
            "sampled_ids": list(completion.token_ids),
            "sampled_logprobs": list(completion.logprobs),
            "logprob_kind": completion.logprob_kind,
            "weight_version": completion.weight_version,
            "weight_version_last": completion.weight_version_last,
            "usage_prompt": reply.usage.prompt_tokens,
            "usage_completion": reply.usage.completion_tokens,
            "usage_cached": reply.usage.cached_tokens,
            "reply": message_json(reply.message()),
            "findings": [*completion.findings, *parsed.findings, *cuts],
        }

    def _pictures(self, call: Call) -> Pictures | None:
        """The images that go to the engine with this call's prompt."""
        images = shown_images(call.request.messages)
        if not images:
            return None
        ids = self._rendering.one_token_an_image(call.placement.prompt_ids.tolist(), len(images))
        return Pictures(ids, tuple(map(data_url, images)), tuple(image.sha256 for image in images))

    async def _record(self, call: Call, fields: dict[str, Any]) -> None:
        await self._ledger.append(call.rollout.ledger, _line("terminal", call, fields))


def _line(kind: str, call: Call, fields: dict[str, Any]) -> dict[str, Any]:
    stamp = "ended_at" if kind == "terminal" else "started_at"
    return {"kind": kind, "call": call.number, stamp: datetime.now(UTC).isoformat(), **fields}


async def _stop(work: "asyncio.Task[Reply]") -> None:
    if not work.done():
        work.cancel()
        await asyncio.wait({work})


def _result(work: "asyncio.Task[Reply]") -> Reply:
    """The reply. Raises Problem where there is none."""
    if work.cancelled():
        raise Problem("not_found", "the rollout has ended")
    return work.result()


async def _keep_images(call: Call) -> None:
    """The new messages' images on disk, beside the calls file and before the line that refers to them."""
    images = [image for message in call.placement.new_messages for image in message.images]
    if images:
        try:
            await asyncio.to_thread(store, call.rollout.ledger.parent / "images", images)
        except OSError as error:
            die(error)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = from_json(body)  # not orjson: it rounds whole numbers of more than 64 bits
    except ValueError:
        try:
            value = json.loads(body)  # it reads half a surrogate pair, and deeper nesting
        except (ValueError, RecursionError) as error:
            raise Problem("bad_request", "the body is not JSON") from error
    if not isinstance(value, dict):
        raise Problem("bad_request", "the body is not a JSON object")
    return value


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
        "prompt_delta_ids": placement.delta_ids.tolist(),
        "prompt_prefix_len": placement.prefix_len,
        "sampling": to_json({**vars(call.sampling), "max_tokens_asked": request.max_tokens}),
        "messages_delta": [message_json(m) for m in placement.new_messages],
        "tools_digest": placement.tools_digest,
        "offers_tools": bool(request.tools),
        "request_sha": body_sha,
        "images": [image.sha256 for image in shown_images(request.messages)] or None,
        "findings": list(placement.findings),
    }
