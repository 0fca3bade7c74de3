"""What harnesses ask for besides a generation: answered without the policy, and never with a made-up success."""

from aiohttp import web

MODELS = [{"id": "policy-v1", "object": "model", "type": "model", "display_name": "policy", "owned_by": "openforge"}]


def auxiliary(http: web.Request, path: str) -> web.Response:
    """The answer to a request on `path` (below the rollout prefix) that is no model call."""
    if http.headers.get("upgrade", "").lower() == "websocket":
        # Codex tries a WebSocket first, and on 426 goes on over HTTP at once.
        return web.json_response(_refusal("no WebSocket here: use HTTP"), status=426)
    if http.method in ("GET", "HEAD") and path == "/v1/models":
        return web.json_response({"object": "list", "data": MODELS, "has_more": False})
    if http.method == "HEAD" and path == "/api/hello":  # Claude Code's check that somebody is there
        return web.Response()
    return web.json_response(_refusal(f"{http.method} {path} is not served"), status=404)


def _refusal(message: str) -> dict[str, object]:
    return {"type": "error", "error": {"type": "not_found_error", "message": message}}
