"""A model server without think time, so that only what lies before it is measured.

It answers every request with the same call of the shell tool: as token ids on the engines' wire (for our proxy), as a
Messages object (for pass-throughs), and as a chat completion (for LiteLLM).

    python -m bench.fake_engine --model DIR --port 8200
"""

import argparse
import json
from pathlib import Path
from typing import Any

from aiohttp import web
from transformers import AutoTokenizer

COMMAND = {"command": "ls -l"}
TURN = f'<tool_call>\n{{"name": "Bash", "arguments": {json.dumps(COMMAND)}}}\n</tool_call><|im_end|>'


def app(ids: list[int]) -> web.Application:
    """The server; `ids` are the tokens of every answer."""
    logprobs = {"content": [{"token_id": i, "logprob": -0.5} for i in ids]}
    usage = {"prompt_tokens": 1, "completion_tokens": len(ids)}
    call = {"id": "call_0", "type": "function", "function": {"name": "Bash", "arguments": json.dumps(COMMAND)}}
    answers: dict[str, dict[str, Any]] = {
        "/inference/v1/generate": {
            "choices": [{"index": 0, "token_ids": ids, "finish_reason": "stop", "logprobs": logprobs}],
            "usage": usage,
        },
        "/v1/messages": {
            "id": "msg_0",
            "type": "message",
            "role": "assistant",
            "model": "policy-v1",
            "content": [{"type": "tool_use", "id": "call_0", "name": "Bash", "input": COMMAND}],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": len(ids)},
        },
        "/v1/chat/completions": {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": 1,
            "model": "policy-v1",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": None, "tool_calls": [call]},
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": {**usage, "total_tokens": 1 + len(ids)},
        },
    }
    encoded = {path: json.dumps(answer).encode() for path, answer in answers.items()}

    async def answer(http: web.Request) -> web.Response:
        await http.read()
        return web.Response(body=encoded[http.path], content_type="application/json")

    async def health(_: web.Request) -> web.Response:
        return web.json_response({})

    server = web.Application(client_max_size=1 << 30)
    server.add_routes([web.get("/health", health), *(web.post(path, answer) for path in encoded)])
    return server


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.fake_engine")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(str(args.model), local_files_only=True)
    ids = tokenizer.encode(TURN, add_special_tokens=False)
    web.run_app(app(ids), host="127.0.0.1", port=args.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
