"""A task's tools: `python3 tool.py NAME 'JSON'` calls one; without arguments it is an MCP server (stdio) of those that
tools.json beside it describes. Runs in the sandbox on its own python3, nothing else, so not on the `mcp` package."""

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any

URL = "http://127.0.0.1:8081/tools/"
LISTING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools.json")


def call(name: str, body: str) -> tuple[str, bool]:
    """The tool's answer to `body`, JSON, and whether it is no error."""
    request = urllib.request.Request(
        URL + name, data=body.encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=60) as answer:
            return answer.read().decode(), True
    except urllib.error.HTTPError as error:
        return error.read().decode(errors="replace"), False


def main(arguments: list[str]) -> int:
    """Call the tool; its answer goes to standard output."""
    if not arguments and os.path.exists(LISTING):
        serve()
        return 0
    if not 1 <= len(arguments) <= 2:
        print("usage: tool.py NAME 'JSON'", file=sys.stderr)
        return 2
    body = arguments[1] if len(arguments) == 2 else "{}"
    try:
        if not isinstance(json.loads(body), dict):
            raise ValueError("it must be an object")
    except ValueError as error:
        print(f"the arguments are not JSON: {error}", file=sys.stderr)
        return 2
    said, fine = call(arguments[0], body)
    print(said)
    return 0 if fine else 1


def serve() -> None:
    """Answer MCP requests, one JSON object a line, until standard input ends."""
    with open(LISTING) as file:
        tools = json.load(file)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue  # a notification, or an answer to what was never asked
        try:
            told = {"result": answer(message["method"], message.get("params") or {}, tools)}
        except LookupError as error:
            told = {"error": {"code": -32601, "message": f"not served here: {error}"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **told}), flush=True)


def answer(method: str, given: dict[str, Any], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The result of an MCP request. Raises LookupError for what a server of tools need not have."""
    if method == "initialize":
        # What is served here has been the same in all versions of the protocol, so the client's will do.
        return {
            "protocolVersion": given["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "claw-tools", "version": "1"},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": tools}
    if method == "tools/call":
        said, fine = call(given["name"], json.dumps(given.get("arguments") or {}))
        return {"content": [{"type": "text", "text": said}], "isError": not fine}
    raise LookupError(method)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
