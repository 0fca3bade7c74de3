"""Anthropic Messages: what Claude Code speaks.

Every system text keeps the place where the client put it: moving one to the front would rewrite the first tokens of
all recorded turns (case O01). A tool result is a turn of its own, before the text that came with it.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from proxy_addons.conversation import TOOL_ERROR_MARK
from proxy_addons.conversation import Message
from proxy_addons.conversation import Problem
from proxy_addons.conversation import Reply
from proxy_addons.conversation import Request
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from proxy_addons.conversation import Usage
from proxy_addons.dialects import Purpose
from proxy_addons.dialects.memory import Memory
from proxy_addons.dialects.reading import Content
from proxy_addons.dialects.reading import arguments_object
from proxy_addons.dialects.reading import arguments_text
from proxy_addons.dialects.reading import as_list
from proxy_addons.dialects.reading import as_name
from proxy_addons.dialects.reading import as_object
from proxy_addons.dialects.reading import as_text
from proxy_addons.dialects.reading import block_content
from proxy_addons.dialects.reading import content_of
from proxy_addons.dialects.reading import count
from proxy_addons.dialects.reading import header
from proxy_addons.dialects.reading import joined
from proxy_addons.dialects.reading import number
from proxy_addons.dialects.reading import offered_tools
from proxy_addons.dialects.reading import refuse
from proxy_addons.dialects.reading import strings
from proxy_addons.dialects.sse import event
from proxy_addons.dialects.sse import pieces

NAME = "anthropic_messages"
PATHS: dict[str, Purpose] = {"/v1/messages": "generate", "/v1/messages/count_tokens": "count"}

# How Claude Code asks for a summary of its history, and how the history after it begins.
_COMPACTION_REQUEST = "CRITICAL: Respond with TEXT ONLY"
_COMPACTED = "This session is being continued from a previous conversation"

# A checksum that Claude Code puts first and that differs on every call (case O30).
_BILLING = "x-anthropic-billing-header"

_ERROR_TYPES = {
    "bad_request": "invalid_request_error",
    "context_length": "invalid_request_error",
    "unauthorized": "authentication_error",
    "not_found": "not_found_error",
    "too_large": "request_too_large",
    "budget": "rate_limit_error",
    "overloaded": "overloaded_error",
    "internal": "api_error",
}


def parse(body: Mapping[str, Any], headers: Mapping[str, str], memory: Memory | None = None) -> Request:
    """A Messages (or count_tokens) body as a `Request`. Raises `Problem` `bad_request` naming the field."""
    memory = memory or Memory()
    notes: list[str] = []
    choice = as_object(body.get("tool_choice") or {}, "tool_choice").get("type")
    messages = list(memory.read(_system, body.get("system"), "system", notes))
    for i, entry in enumerate(as_list(body.get("messages"), "messages")):
        messages += memory.read(_turn, entry, f"messages[{i}]", notes)
    if not messages:
        raise refuse("must not be empty", "messages")
    notes += _compaction([m.content for m in messages if m.role == "user"])
    return Request(
        messages=tuple(messages),
        tools=offered_tools(memory.read(_tools, body.get("tools"), "tools", notes), choice, notes),
        model=as_text(body.get("model"), "model"),
        max_tokens=count(body, "max_tokens"),
        temperature=number(body, "temperature"),
        top_p=number(body, "top_p"),
        stop=strings(body.get("stop_sequences"), "stop_sequences"),
        stream=bool(body.get("stream")),
        agent=header(headers, "x-claude-code-agent-id"),
        notes=tuple(dict.fromkeys(notes)),
    )


def _compaction(users: list[str]) -> Iterator[str]:
    """Which of the two kinds of compaction the user turns speak of (case O42). A turn may hold reminders first."""
    if users and f"\n{_COMPACTION_REQUEST}" in f"\n{users[-1]}":
        yield "compaction_request"
    if users and f"\n{_COMPACTED}" in f"\n{users[0]}":
        yield "compaction"


def _system(system: Any, where: str, notes: list[str]) -> list[Message]:
    if isinstance(system, list):
        system = [b for b in system if not (isinstance(b, Mapping) and str(b.get("text")).startswith(_BILLING))]
    elif isinstance(system, str) and system.startswith(_BILLING):
        # A plain string is one block whose first line is the header.
        system = system.partition("\n")[2]
    given = content_of(system, where, notes)
    return [Message("system", given.text, flags=given.flags, images=given.images)] if given.text else []


def _turn(value: Any, where: str, notes: list[str]) -> list[Message]:
    entry = as_object(value, where)
    role, content = entry.get("role"), entry.get("content")
    if role == "assistant":
        return [_assistant(content, f"{where}.content", notes)]
    if role == "user":
        return _user(content, f"{where}.content", notes)
    if role == "system":
        given = content_of(content, f"{where}.content", notes)
        return [Message("system", given.text, flags=given.flags, images=given.images)]
    raise refuse(f"{str(role)[:40]!r} is not one of user, assistant, system", f"{where}.role")


def _assistant(content: Any, where: str, notes: list[str]) -> Message:
    if isinstance(content, str):
        return Message("assistant", content)
    parts: list[Content] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for i, item in enumerate(as_list(content, where)):
        place = f"{where}[{i}]"
        block = as_object(item, place)
        kind = block.get("type")
        if kind == "thinking":
            reasoning.append(as_text(block.get("thinking"), f"{place}.thinking"))
        elif kind == "redacted_thinking":
            parts.append(Content(flags=("redacted_thinking",)))
        elif kind == "tool_use":
            name = as_name(block.get("name"), f"{place}.name")
            calls.append(ToolCall(as_name(block.get("id"), f"{place}.id"), name, arguments_text(block.get("input"))))
        else:
            parts.append(block_content(block, place, notes))
    given, thought = joined(parts), "\n".join(filter(None, reasoning))
    return Message("assistant", given.text, thought, tuple(calls), flags=given.flags, images=given.images)


def _user(content: Any, where: str, notes: list[str]) -> list[Message]:
    """Tool results as tool turns, and the runs of other blocks around them as user turns, in the order given."""
    if content is None or isinstance(content, str):
        return [Message("user", content or "")]
    messages: list[Message] = []
    parts: list[Content] = []

    def flush() -> None:
        given = joined(parts)
        if given != Content():
            messages.append(Message("user", given.text, flags=given.flags, images=given.images))
        parts.clear()

    for i, item in enumerate(as_list(content, where)):
        place = f"{where}[{i}]"
        block = as_object(item, place)
        if block.get("type") == "tool_result":
            flush()
            messages.append(_tool_result(block, place, notes))
        else:
            parts.append(block_content(block, place, notes))
    flush()
    return messages or [Message("user")]


def _tool_result(block: Mapping[str, Any], where: str, notes: list[str]) -> Message:
    given = content_of(block.get("content"), f"{where}.content", notes)
    if block.get("is_error") is True:
        given = joined((Content(TOOL_ERROR_MARK, ("tool_error",)), given), separator="")
    call = as_name(block.get("tool_use_id"), f"{where}.tool_use_id")
    return Message("tool", given.text, tool_call_id=call, flags=given.flags, images=given.images)


def _tools(tools: Any, where: str, notes: list[str]) -> list[Tool]:
    read = []
    for i, entry in enumerate(as_list(tools, where)):
        place = f"{where}[{i}]"
        tool = as_object(entry, place)
        if "input_schema" not in tool:
            # Run by the provider (web search and the like): there is no provider here.
            notes.append(f"hosted_tool_dropped:{str(tool.get('type'))[:40]}")
            continue
        schema = dict(as_object(tool["input_schema"], f"{place}.input_schema"))
        name = as_name(tool.get("name"), f"{place}.name")
        read.append(Tool(name, as_text(tool.get("description"), f"{place}.description"), schema))
    return read


def _signature(reply_id: str) -> str:
    """Harnesses keep a thinking block only with a signature and send it back unread (case O20)."""
    return f"openforge-{reply_id}"


def _usage(usage: Usage) -> dict[str, int]:
    """Input counts: what was read from a cache is not in `input_tokens`; unknown is absent (case O08)."""
    if usage.cached_tokens is None:
        return {"input_tokens": usage.prompt_tokens}
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
    }


def _stop(reply: Reply) -> dict[str, str | None]:
    """Why it ended. A call is to be run whatever the engine said, unless it was cut (case O06)."""
    if reply.finish == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if reply.tool_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if reply.stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": reply.stop_sequence}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": _signature(reply.id)})
    if reply.content or not (reply.reasoning or reply.tool_calls):
        blocks.append({"type": "text", "text": reply.content})
    for call in reply.tool_calls:
        blocks.append(
            {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call.arguments)[0]}
        )
    return blocks


def reply_json(request: Request, reply: Reply) -> dict[str, Any]:
    """The reply as a `message` object."""
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": _blocks(reply),
        **_stop(reply),
        "usage": {**_usage(reply.usage), "output_tokens": reply.usage.completion_tokens},
    }


def count_json(tokens: int) -> dict[str, Any]:
    """The answer to count_tokens."""
    return {"input_tokens": tokens}


def error_json(problem: Problem) -> dict[str, Any]:
    """A refusal; the same object is the data of an `error` event."""
    return {"type": "error", "error": {"type": _ERROR_TYPES[problem.kind], "message": problem.message}}


def open_stream(request: Request, reply_id: str, created: int) -> "MessageStream":
    """A stream for one reply."""
    return MessageStream()


class MessageStream:
    """The events of one message. `message_start` waits for the reply because it tells the input counts (case O08);
    until then pings keep the connection alive."""

    def start(self) -> bytes:
        return b""

    def keepalive(self) -> bytes:
        return _event({"type": "ping"})

    def error(self, problem: Problem) -> bytes:
        return _event(error_json(problem))

    def reply(self, reply: Reply) -> Iterator[bytes]:
        message: dict[str, Any] = {
            "id": f"msg_{reply.id}",
            "type": "message",
            "role": "assistant",
            "model": reply.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**_usage(reply.usage), "output_tokens": 0},
        }
        yield _event({"type": "message_start", "message": message})
        calls = iter(reply.tool_calls)
        for index, block in enumerate(_blocks(reply)):
            if block["type"] == "thinking":
                empty: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            elif block["type"] == "text":
                empty = {"type": "text", "text": ""}
                deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
            else:
                empty = {**block, "input": {}}
                text = arguments_object(next(calls).arguments)[1]
                deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(text)]
            yield _event({"type": "content_block_start", "index": index, "content_block": empty})
            for delta in deltas:
                yield _event({"type": "content_block_delta", "index": index, "delta": delta})
            yield _event({"type": "content_block_stop", "index": index})
        usage = {"output_tokens": reply.usage.completion_tokens}
        yield _event({"type": "message_delta", "delta": _stop(reply), "usage": usage})
        yield _event({"type": "message_stop"})


def _event(data: dict[str, Any]) -> bytes:
    return event(data, name=data["type"])
