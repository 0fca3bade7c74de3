"""What harnesses ask for besides a generation: answered without the policy, and never with a made-up success."""

from collections.abc import Mapping

from proxy_addons.conversation import Problem
from proxy_addons.dialects import openai_chat
from proxy_addons.dialects.reading import header
from proxy_addons.gateway import Answer
from proxy_addons.records import to_json

MODELS = [{"id": "policy-v1", "object": "model", "type": "model", "display_name": "policy", "owned_by": "openforge"}]


def auxiliary(method: str, path: str, headers: Mapping[str, str]) -> Answer:
    """The answer to a request on `path` (below the rollout prefix) that is no model call."""
    if (header(headers, "upgrade") or "").lower() == "websocket":
        # Codex tries a WebSocket first, and on 426 goes on over HTTP at once.
        return _refusal(426, "no WebSocket here: use HTTP")
    if method in ("GET", "HEAD") and path == "/v1/models":
        return _json(200, {"object": "list", "data": MODELS, "has_more": False})
    if method == "HEAD" and path == "/api/hello":  # Claude Code's check that somebody is there
        return Answer(200, b"", "text/plain")
    if path == "/v1/completions":
        told = "text completions are not served, a turn has no place in them; use /v1/chat/completions"
        return _json(404, openai_chat.error_json(Problem("not_found", told)))
    return _refusal(404, f"{method} {path} is not served")


def _refusal(status: int, message: str) -> Answer:
    return _json(status, {"type": "error", "error": {"type": "not_found_error", "message": message}})


def _json(status: int, value: object) -> Answer:
    return Answer(status, to_json(value).encode())
