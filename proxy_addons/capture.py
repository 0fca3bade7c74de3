"""The mitmproxy addon: who may pass, and what the harness really received.

It authenticates every request against the live rollouts, refuses everything that is not a model call of one of them
(that is the egress policy: a sandbox reaches the policy and nothing else), has the gateway answer the rest, and closes
each call's record once the reply has gone out.
"""

import time

from mitmproxy import http
from mitmproxy.net.http.status_codes import RESPONSES

from proxy_addons.auxiliary import auxiliary
from proxy_addons.conversation import Problem
from proxy_addons.dialects import find_route
from proxy_addons.gateway import STREAM_HEADERS
from proxy_addons.gateway import Answer
from proxy_addons.gateway import Gateway
from proxy_addons.gateway import Waiting
from proxy_addons.ledger import Ledger
from proxy_addons.live import Live
from proxy_addons.live import key_matches
from proxy_addons.records import to_json

_KEY_HEADERS = {b"x-api-key", b"x-goog-api-key", b"authorization"}


class Capture:
    """One per proxy process. `streams` is where the gateway's application holds the streams that wait."""

    def __init__(self, live: Live, ledger: Ledger, gateway: Gateway, streams: tuple[str, int]) -> None:
        self._live = live
        self._ledger = ledger
        self._gateway = gateway
        self._streams = streams

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        """Refuse at once what is not a live rollout's own request."""
        if "egress" in flow.metadata:
            return  # decided already, by the other port's addon
        _, root, prefix, *rest = [*flow.request.path.split("?")[0].split("/", 3), "", "", ""][:4]
        path = "/" + "".join(rest)
        problem = None
        presented = take_key(flow.request)
        rollout = self._live.get(prefix)
        if root != "r" or not prefix:
            problem = Problem("not_found", f"only model calls of a rollout pass here, not {flow.request.host}")
        elif rollout is None:
            problem = Problem("not_found", "unknown rollout: this URL's prefix is not a live one")
        elif not key_matches(rollout, presented):
            problem = Problem("unauthorized", "wrong key for this rollout")
        if problem is not None:
            flow.response = self._error(path, problem)
            return
        self.admit(flow, prefix, path.replace(presented, "rollout-key"))

    def admit(self, flow: http.HTTPFlow, rollout: str, path: str) -> None:
        """Let a request whose key was taken out be answered, as one for `path` by this rollout."""
        flow.metadata["rollout"], flow.metadata["path"] = rollout, path

    async def request(self, flow: http.HTTPFlow) -> None:
        """Answer a model call, or hand the harness over to its waiting stream."""
        rollout = self._live.get(flow.metadata.get("rollout", ""))
        if rollout is None or flow.response is not None:
            return
        path, method = flow.metadata["path"], flow.request.method
        route = find_route(path)
        if route is None or method != "POST":
            flow.response = _response(auxiliary(method, path, _plain(flow.request.headers, rollout.key)))
            return
        body = flow.request.raw_content or b""
        headers = _plain(flow.request.headers, rollout.key)
        answer = await self._gateway.handle(rollout, route, headers, body, lambda: not flow.client_conn.connected)
        flow.metadata["call"] = answer.call
        flow.request.raw_content = b""  # mitmproxy's own objects keep each other, and it, until they are collected
        if isinstance(answer, Answer):
            flow.response = _response(answer)
            return
        flow.metadata["waiting"] = answer
        flow.request.headers = http.Headers(host="127.0.0.1")
        flow.request.method, flow.request.path = "GET", f"/{answer.ticket}"
        flow.request.scheme = "http"
        flow.request.host, flow.request.port = self._streams

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        """Stream a waiting call's reply through, never held back."""
        if flow.response is not None and "waiting" in flow.metadata:
            flow.response.stream = True

    async def response(self, flow: http.HTTPFlow) -> None:
        """The whole reply went out."""
        self._finish(flow, whole=True)

    async def error(self, flow: http.HTTPFlow) -> None:
        """The harness or the gateway broke off."""
        waiting = flow.metadata.get("waiting")
        if isinstance(waiting, Waiting):
            await self._gateway.forget(waiting.ticket)
        self._finish(flow, whole=False)

    def _finish(self, flow: http.HTTPFlow, whole: bool) -> None:
        call = flow.metadata.get("call")
        rollout = self._live.get(flow.metadata.get("rollout", ""))
        if call is None or rollout is None:
            return
        findings = [] if whole and flow.client_conn.connected else ["not_delivered"]
        self._ledger.note_later(rollout.ledger, {"kind": "delivered", "call": call, "findings": findings})

    def _error(self, path: str, problem: Problem) -> http.Response:
        route = find_route(path)
        body = route.dialect.error_json(problem) if route else {"error": {"message": problem.message}}
        return _response(Answer(problem.status, to_json(body).encode()))


def _response(answer: Answer) -> http.Response:
    """The answer for mitmproxy. (`Response.make` takes half as long again: 59 and 40 µs.)"""
    stream = answer.content_type == STREAM_HEADERS["content-type"]
    headers = {**(STREAM_HEADERS if stream else {"content-type": answer.content_type})}
    headers["content-length"] = str(len(answer.body))
    fields = http.Headers([(name.encode(), value.encode()) for name, value in headers.items()])
    reason = RESPONSES.get(answer.status, "").encode()
    now = time.time()
    return http.Response(b"HTTP/1.1", answer.status, reason, fields, answer.body, None, now, now)


def _plain(headers: http.Headers, key: str) -> dict[str, str]:
    """Headers by lower-case name, without the key, which a harness may also have put into an id or a cookie.

    (mitmproxy's own type decodes all of them for every look-up.)
    """
    fields = ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers.fields)
    return {name: value.replace(key, "[rollout key]") for name, value in fields}


def take_key(request: http.Request) -> str:
    """The key that the request shows, removed from it so that nothing behind can store it."""
    key = ""
    if "?" in request.path and "key" in request.query:
        key = request.query["key"]
        del request.query["key"]
    kept = []
    for name, value in request.headers.fields:
        if name.lower() in _KEY_HEADERS:
            key = key or value.decode("latin-1").removeprefix("Bearer ")
        else:
            kept.append((name, value))
    request.headers.fields = tuple(kept)
    return key
