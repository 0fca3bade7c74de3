"""A model server without think time, so that only what lies before it is measured.

It answers every request with the same call of the shell tool: as token ids on the engines' wire (for our proxy), as a
Messages object (for pass-throughs), and as a chat completion (for LiteLLM). Asked for a stream, or told to think by
`max_tokens` above `THINKING`, it takes the time of that many tokens at `TOKENS_PER_S`, and a stream has an event each.

    python -m bench.fake_engine --model DIR --port 8200
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from transformers import AutoTokenizer

COMMAND = {"command": "ls -l"}
THINKING = 1000
TOKENS_PER_S = 50.0
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

    async def answer(http: web.Request) -> web.StreamResponse:
        asked = orjson.loads(await http.read())
        budget = asked.get("max_tokens") or asked.get("sampling_params", {}).get("max_tokens", 0)
        tokens = max(budget - THINKING, 0)
        if asked.get("stream"):
            return await _stream(http, answers[http.path], tokens)
        await asyncio.sleep(tokens / TOKENS_PER_S)
        return web.Response(body=encoded[http.path], content_type="application/json")

    async def health(_: web.Request) -> web.Response:
        return web.json_response({})

    server = web.Application(client_max_size=1 << 30)
    server.add_routes([web.get("/health", health), *(web.post(path, answer) for path in encoded)])
    return server


async def _stream(http: web.Request, whole: dict[str, Any], tokens: int) -> web.StreamResponse:
    """The answer as events, the tokens one after the other in the tool call's arguments."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(http)
    anthropic = http.path == "/v1/messages"
    before, each, after = _message_events(whole) if anthropic else _chat_events(whole)
    for event in before:
        await response.write(event)
    for _ in range(tokens):
        await asyncio.sleep(1 / TOKENS_PER_S)
        await response.write(each)
    for event in after:
        await response.write(event)
    await response.write_eof()
    return response


def _event(data: Any) -> bytes:
    head = f"event: {data['type']}\n" if "type" in data else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def _message_events(whole: dict[str, Any]) -> tuple[list[bytes], bytes, list[bytes]]:
    block = whole["content"][0]

    def delta(text: str) -> bytes:
        part = {"type": "input_json_delta", "partial_json": text}
        return _event({"type": "content_block_delta", "index": 0, "delta": part})

    start = {"type": "content_block_start", "index": 0, "content_block": {**block, "input": {}}}
    before = [
        _event({"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}),
        _event(start),
    ]
    stop = {"stop_reason": "tool_use", "stop_sequence": None}
    end = [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": whole["usage"]},
    ]
    after = [delta(json.dumps(block["input"])), *(_event(e) for e in [*end, {"type": "message_stop"}])]
    return before, delta(" "), after


def _chat_events(whole: dict[str, Any]) -> tuple[list[bytes], bytes, list[bytes]]:
    call = whole["choices"][0]["message"]["tool_calls"][0]

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event({**whole, "object": "chat.completion.chunk", "choices": [choice], "usage": None, **more})

    def arguments(text: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}

    opened = {**call, "index": 0, "function": {"name": call["function"]["name"], "arguments": ""}}
    last = [chunk(arguments(call["function"]["arguments"])), chunk({}, "tool_calls", usage=whole["usage"])]
    return [chunk({"role": "assistant", "tool_calls": [opened]})], chunk(arguments(" ")), [*last, b"data: [DONE]\n\n"]


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
