"""The mitmproxy addon: who may pass, where to, and what the harness really received.

It authenticates every request against the live rollouts, refuses everything that is not a model call of one of them
(that is the egress policy: a sandbox reaches the policy and nothing else), sends the rest to the gateway, and closes
each call's record once the reply has gone out. Bodies are streamed through, never held back.
"""

from mitmproxy import http

from proxy_addons.conversation import Problem
from proxy_addons.dialects import find_route
from proxy_addons.gateway import CALL_HEADER
from proxy_addons.gateway import ROLLOUT_HEADER
from proxy_addons.gateway import SECRET_HEADER
from proxy_addons.ledger import Ledger
from proxy_addons.live import Live
from proxy_addons.live import key_matches
from proxy_addons.records import to_json

_KEY_HEADERS = ("x-api-key", "x-goog-api-key", "authorization")


class Capture:
    """One per proxy process."""

    def __init__(self, live: Live, ledger: Ledger, gateway: tuple[str, int], secret: str) -> None:
        self._live = live
        self._ledger = ledger
        self._gateway = gateway
        self._secret = secret

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        """Let a live rollout's own request through to the gateway; answer all else here."""
        if "egress" in flow.metadata:
            return  # decided already, by the other port's addon
        _, _, prefix, *rest = [*flow.request.path.split("?")[0].split("/", 3), "", "", ""][:4]
        path = "/" + "".join(rest)
        problem = self._refusal(flow, prefix)
        presented = take_key(flow.request)
        if problem is None:
            rollout = self._live.get(prefix)
            if rollout is None:
                problem = Problem("not_found", "unknown rollout: this URL's prefix is not a live one")
            elif not key_matches(rollout, presented):
                problem = Problem("unauthorized", "wrong key for this rollout")
        if problem is not None:
            flow.response = self._error(path, problem)
            return
        self.admit(flow, prefix)

    def admit(self, flow: http.HTTPFlow, prefix: str) -> None:
        """Send a request whose key was taken out to the gateway, as a call of the rollout `prefix`."""
        flow.request.scheme = "http"
        flow.request.host, flow.request.port = self._gateway
        flow.request.headers[ROLLOUT_HEADER] = prefix
        flow.request.headers[SECRET_HEADER] = self._secret
        flow.metadata["rollout"] = prefix

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        """Stream the reply through; the call's number stays with us."""
        if flow.response is None or "rollout" not in flow.metadata:
            return
        flow.metadata["call"] = flow.response.headers.pop(CALL_HEADER, None)
        flow.response.stream = True

    async def response(self, flow: http.HTTPFlow) -> None:
        """The whole reply went out."""
        await self._finish(flow, whole=True)

    async def error(self, flow: http.HTTPFlow) -> None:
        """The harness or the gateway broke off."""
        await self._finish(flow, whole=False)

    async def _finish(self, flow: http.HTTPFlow, whole: bool) -> None:
        call = flow.metadata.get("call")
        rollout = self._live.get(flow.metadata.get("rollout", ""))
        if call is None or rollout is None:
            return
        findings = [] if whole else ["not_delivered"]
        await self._ledger.append(rollout.ledger, {"kind": "delivered", "call": int(call), "findings": findings})

    def _refusal(self, flow: http.HTTPFlow, prefix: str) -> Problem | None:
        if not flow.request.path.startswith("/r/") or not prefix:
            return Problem("not_found", f"only model calls of a rollout pass here, not {flow.request.host}")
        return None

    def _error(self, path: str, problem: Problem) -> http.Response:
        route = find_route(path)
        body = route.dialect.error_json(problem) if route else {"error": {"message": problem.message}}
        return http.Response.make(problem.status, to_json(body), {"content-type": "application/json"})


def take_key(request: http.Request) -> str:
    """The key that the request shows, removed from it so that nothing behind can store it."""
    key = request.query.get("key", "")
    for header in _KEY_HEADERS:
        value = request.headers.pop(header, "")
        key = key or value.removeprefix("Bearer ")
    if "key" in request.query:
        del request.query["key"]
    return key
