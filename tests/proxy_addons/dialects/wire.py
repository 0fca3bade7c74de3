"""A harness's side of each dialect, for tests: read an event stream, put the reply together, send it back."""

import codecs
import json
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from proxy_addons.conversation import Finish
from proxy_addons.conversation import Message
from proxy_addons.conversation import Reply
from proxy_addons.conversation import Request
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from proxy_addons.conversation import Usage
from proxy_addons.dialects import Dialect
from proxy_addons.dialects import load_dialects

DIALECTS = load_dialects()
Event = tuple[str | None, Any]

SHELL = Tool("shell", "Run a command.", {"type": "object", "properties": {"cmd": {"type": "string"}}})
PATCH = Tool("apply_patch", "Edit files.", {"type": "object"}, kind="custom")
SPAWN = Tool("agents__spawn", "Start a sub-agent.", {"type": "object"}, namespace="agents")


def make_reply(
    content: str = "",
    *calls: ToolCall,
    reasoning: str = "",
    finish: Finish = "stop",
    usage: Usage | None = None,
    stop_sequence: str | None = None,
) -> Reply:
    return Reply(
        id="r1",
        model="policy",
        content=content,
        reasoning=reasoning,
        tool_calls=calls,
        finish=finish,
        usage=usage or Usage(100, 7, 80),
        created=1_700_000_000,
        stop_sequence=stop_sequence,
    )


def make_request(*tools: Tool, **fields: Any) -> Request:
    return Request((Message("user", "go"),), tools=tools, model="policy", stream=True, **fields)


def stream_bytes(dialect: Dialect, request: Request, reply: Reply, keepalives: int = 0) -> bytes:
    """A whole stream, as the gateway sends it."""
    stream = dialect.open_stream(request, reply.id, reply.created)
    sent = [stream.start(), *(stream.keepalive() for _ in range(keepalives)), *stream.reply(reply)]
    return b"".join(sent)


def decode(chunks: Iterable[bytes]) -> list[Event]:
    """The events of a stream whose bytes arrive in any pieces. The data is parsed, except `[DONE]`."""
    return list(_decode(chunks))


def _decode(chunks: Iterable[bytes]) -> Iterator[Event]:
    text = codecs.getincrementaldecoder("utf-8")()
    rest = ""
    for chunk in chunks:
        rest += text.decode(chunk)
        while "\n\n" in rest:
            block, rest = rest.split("\n\n", 1)
            fields = dict(line.split(": ", 1) for line in block.split("\n"))
            data = fields["data"]
            yield fields.get("event"), data if data == "[DONE]" else json.loads(data)
    assert rest == "", f"half an event at the end: {rest!r}"


def assemble(name: str, events: list[Event]) -> dict[str, Any]:
    """The reply that the events of dialect `name` spell, in the shape of its non-streaming reply."""
    return {
        "anthropic_messages": _message,
        "openai_responses": _response,
        "openai_chat": _completion,
        "gemini": _content,
    }[name](events)


def _message(events: list[Event]) -> dict[str, Any]:
    message: dict[str, Any] = {}
    block: dict[str, Any] | None = None
    partial = ""
    for name, data in events:
        kind = data["type"]
        assert name == kind
        if kind == "message_start":
            message = data["message"]
        elif kind == "content_block_start":
            assert block is None, "a block opened inside another"
            assert data["index"] == len(message["content"])
            block, partial = data["content_block"], ""
            message["content"].append(block)
        elif kind == "content_block_delta":
            assert block is not None
            delta = data["delta"]
            if delta["type"] == "input_json_delta":
                partial += delta["partial_json"]
            else:
                key = delta["type"].removesuffix("_delta")
                block[key] += delta[key]
        elif kind == "content_block_stop":
            assert block is not None
            if block["type"] == "tool_use":
                block["input"] = json.loads(partial)
            block = None
        elif kind == "message_delta":
            assert block is None
            message |= data["delta"]
            message["usage"] |= data["usage"]
        else:
            assert kind in ("ping", "message_stop"), kind
    assert events[-1][1]["type"] == "message_stop"
    return message


def _response(events: list[Event]) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for number, (name, data) in enumerate(events):
        kind = data["type"]
        assert name == kind
        assert data["sequence_number"] == number
        if kind == "response.output_item.added":
            assert data["output_index"] == len(items)
            items.append(data["item"])
        elif kind == "response.content_part.added":
            items[-1]["content"].append(data["part"])
        elif kind.endswith(".delta"):
            assert data["item_id"] == items[-1]["id"]
            if "content_index" in data:
                items[-1]["content"][data["content_index"]]["text"] += data["delta"]
            else:
                items[-1][_key(kind)] += data["delta"]
        elif kind.endswith((".text.done", "_text.done")):
            assert data["text"] == items[-1]["content"][data["content_index"]]["text"]
        elif kind.endswith(("arguments.done", "input.done")):
            assert data[_key(kind)] == items[-1][_key(kind)]
        elif kind == "response.output_item.done":
            assert data["item"] == {**items[-1], "status": data["item"]["status"]}
            items[-1] = data["item"]
    last = events[-1][1]
    assert last["type"] == f"response.{last['response']['status']}"
    assert items == last["response"]["output"]
    assert events[0][1]["response"]["id"] == last["response"]["id"]
    return last["response"]


def _key(kind: str) -> str:
    return "arguments" if "arguments" in kind else "input"


def _completion(events: list[Event]) -> dict[str, Any]:
    message: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    finish = usage = None
    head: dict[str, Any] = {}
    for _, data in events[:-1]:
        head = {key: data[key] for key in ("id", "created", "model")}
        usage = data.get("usage", usage)
        for choice in data["choices"]:
            finish = choice["finish_reason"] or finish
            delta = choice["delta"]
            for key in ("content", "reasoning_content"):
                if delta.get(key) is not None:
                    message[key] = message.get(key, "") + delta[key]
            for piece in delta.get("tool_calls", ()):
                if piece["index"] == len(calls):
                    calls.append({"id": piece["id"], "type": "function", "function": piece["function"]})
                else:
                    assert piece["index"] == len(calls) - 1
                    calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
    assert events[-1] == (None, "[DONE]")
    message = {"role": "assistant", "content": None, **message, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


def _content(events: list[Event]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    answer: dict[str, Any] = {}
    for name, data in events:
        assert name is None
        for candidate in data["candidates"]:
            assert "finishReason" not in answer.get("candidates", [{}])[0], "a chunk after the last one"
            for part in candidate["content"]["parts"]:
                if "text" in part and parts and {**parts[-1], "text": ""} == {**part, "text": ""}:
                    parts[-1]["text"] += part["text"]
                else:
                    parts.append(part)
            candidate["content"]["parts"] = parts
            answer |= data
    return answer


def send_back(name: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The next request's body of a harness that keeps its history as it got it."""
    if name == "anthropic_messages":
        turn = {"role": "assistant", "content": json.loads(json.dumps(answer["content"]))}
        return {"messages": [{"role": "user", "content": "go"}, turn]}
    if name == "gemini":
        return {"contents": [{"role": "user", "parts": [{"text": "go"}]}, answer["candidates"][0]["content"]]}
    if name == "openai_responses":
        return {"input": [{"role": "user", "content": "go"}, *answer["output"]]}
    return {"messages": [{"role": "user", "content": "go"}, answer["choices"][0]["message"]]}
