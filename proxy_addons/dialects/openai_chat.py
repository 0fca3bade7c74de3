"""OpenAI Chat Completions: what opencode, Qwen Code, mini-swe-agent, OpenHands and many others speak."""

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from proxy_addons.conversation import Message
from proxy_addons.conversation import Problem
from proxy_addons.conversation import Reply
from proxy_addons.conversation import Request
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from proxy_addons.conversation import Usage
from proxy_addons.dialects import Purpose
from proxy_addons.dialects.memory import Memory
from proxy_addons.dialects.reading import as_list
from proxy_addons.dialects.reading import as_name
from proxy_addons.dialects.reading import as_object
from proxy_addons.dialects.reading import as_text
from proxy_addons.dialects.reading import content_of
from proxy_addons.dialects.reading import count
from proxy_addons.dialects.reading import number
from proxy_addons.dialects.reading import offered_tools
from proxy_addons.dialects.reading import refuse
from proxy_addons.dialects.reading import strings
from proxy_addons.dialects.sse import event
from proxy_addons.dialects.sse import pieces

NAME = "openai_chat"
PATHS: dict[str, Purpose] = {"/v1/chat/completions": "generate"}

DONE = b"data: [DONE]\n\n"

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}

_ERRORS = {
    "bad_request": ("invalid_request_error", None),
    "context_length": ("invalid_request_error", "context_length_exceeded"),
    "unauthorized": ("authentication_error", "invalid_api_key"),
    "not_found": ("invalid_request_error", "not_found"),
    "too_large": ("invalid_request_error", "request_too_large"),
    "budget": ("rate_limit_error", "rate_limit_exceeded"),
    "overloaded": ("server_error", "overloaded"),
    "internal": ("server_error", "internal_error"),
}


def parse(body: Mapping[str, Any], headers: Mapping[str, str], memory: Memory | None = None) -> Request:
    """A chat completion body as a `Request`. Raises `Problem` `bad_request` naming the field."""
    if body.get("n") not in (None, 1):
        raise refuse("one choice a call is all that is recorded; send 1 or leave it out", "n")
    for old in ("functions", "function_call"):
        if body.get(old):
            raise refuse("the older form of tools is not served; send tools and tool_choice", old)
    memory = memory or Memory()
    notes: list[str] = []
    messages = tuple(
        memory.read(_turn, entry, f"messages[{i}]", notes)
        for i, entry in enumerate(as_list(body.get("messages"), "messages"))
    )
    if not messages:
        raise refuse("must not be empty", "messages")
    options = as_object(body.get("stream_options") or {}, "stream_options")
    limit = count(body, "max_completion_tokens")
    return Request(
        messages=messages,
        tools=offered_tools(memory.read(_tools, body.get("tools"), "tools", notes), body.get("tool_choice"), notes),
        model=as_text(body.get("model"), "model"),
        max_tokens=count(body, "max_tokens") if limit is None else limit,
        temperature=number(body, "temperature"),
        top_p=number(body, "top_p"),
        stop=strings(body.get("stop"), "stop"),
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        notes=tuple(dict.fromkeys(notes)),
    )


def _turn(value: Any, where: str, notes: list[str]) -> Message:
    entry = as_object(value, where)
    role = entry.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise refuse(f"{str(role)[:40]!r} is not one of {', '.join(_ROLES)}", f"{where}.role")
    given = content_of(entry.get("content"), f"{where}.content", notes)
    seen: dict[str, Any] = {"flags": given.flags, "images": given.images}
    if entry.get("function_call"):
        raise refuse("the older form of tool calls is not served; send tool_calls", f"{where}.function_call")
    if role == "assistant":
        field = "reasoning_content" if entry.get("reasoning_content") else "reasoning"
        reasoning = as_text(entry.get(field), f"{where}.{field}")
        return Message("assistant", given.text, reasoning, tuple(_calls(entry.get("tool_calls"), where)), **seen)
    if role == "tool":
        call = as_name(entry.get("tool_call_id"), f"{where}.tool_call_id")
        return Message("tool", given.text, tool_call_id=call, **seen)
    return Message("user" if role == "user" else "system", given.text, **seen)


def _calls(calls: Any, where: str) -> Iterator[ToolCall]:
    for i, entry in enumerate(as_list(calls, f"{where}.tool_calls")):
        place = f"{where}.tool_calls[{i}]"
        call = as_object(entry, place)
        function = as_object(call.get("function"), f"{place}.function")
        arguments = as_text(function.get("arguments"), f"{place}.function.arguments")
        name = as_name(function.get("name"), f"{place}.function.name")
        yield ToolCall(as_name(call.get("id"), f"{place}.id"), name, arguments)


def _tools(tools: Any, where: str, notes: list[str]) -> list[Tool]:
    read = []
    for i, entry in enumerate(as_list(tools, where)):
        place = f"{where}[{i}]"
        tool = as_object(entry, place)
        if tool.get("type") != "function":
            notes.append(f"hosted_tool_dropped:{str(tool.get('type'))[:40]}")
            continue
        function = as_object(tool.get("function"), f"{place}.function")
        schema = dict(as_object(function.get("parameters") or {}, f"{place}.function.parameters"))
        name = as_name(function.get("name"), f"{place}.function.name")
        read.append(Tool(name, as_text(function.get("description"), f"{place}.function.description"), schema))
    return read


def _usage(usage: Usage) -> dict[str, Any]:
    known = {} if usage.cached_tokens is None else {"prompt_tokens_details": {"cached_tokens": usage.cached_tokens}}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        **known,
    }


def _finish(reply: Reply) -> str:
    """Why it ended. A call is to be run whatever the engine said, unless it was cut (case O06)."""
    if reply.finish == "length":
        return "length"
    return "tool_calls" if reply.tool_calls else "stop"


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def reply_json(request: Request, reply: Reply) -> dict[str, Any]:
    """The reply as a `chat.completion` object."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["content"] = reply.content or None
        message["tool_calls"] = [_call(call) for call in reply.tool_calls]
    return {
        "id": f"chatcmpl-{reply.id}",
        "object": "chat.completion",
        "created": reply.created,
        "model": reply.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}],
        "usage": _usage(reply.usage),
    }


def count_json(tokens: int) -> dict[str, Any]:
    """This dialect has no counting path; the shape is that of its sibling's."""
    return {"input_tokens": tokens}


def error_json(problem: Problem) -> dict[str, Any]:
    """A refusal; the same object is the data of an error chunk."""
    kind, code = _ERRORS[problem.kind]
    return {"error": {"message": problem.message, "type": kind, "param": problem.param, "code": code}}


def open_stream(request: Request, reply_id: str, created: int) -> "ChatStream":
    """A stream for one reply."""
    return ChatStream(request, reply_id, created)


class ChatStream:
    """The chunks of one completion."""

    def __init__(self, request: Request, reply_id: str, created: int) -> None:
        self._include_usage = request.include_usage
        self._head = {
            "id": f"chatcmpl-{reply_id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": request.model,
        }

    def start(self) -> bytes:
        return b""

    def keepalive(self) -> bytes:
        return event({**self._head, "choices": []})

    def error(self, problem: Problem) -> bytes:
        """An error chunk; no `[DONE]` follows, so that nobody takes the part for the whole (case O17)."""
        return event(error_json(problem))

    def reply(self, reply: Reply) -> Iterator[bytes]:
        self._head["model"] = reply.model
        yield self._chunk({"role": "assistant", "content": None if reply.tool_calls else ""})
        for piece in pieces(reply.reasoning):
            yield self._chunk({"reasoning_content": piece})
        for piece in pieces(reply.content):
            yield self._chunk({"content": piece})
        for index, call in enumerate(reply.tool_calls):
            opening = _call(ToolCall(call.id, call.name, ""))
            yield self._chunk({"tool_calls": [{"index": index, **opening}]})
            for piece in pieces(call.arguments):
                yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield self._chunk({}, _finish(reply))
        if self._include_usage:
            yield event({**self._head, "choices": [], "usage": _usage(reply.usage)})
        yield DONE

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**self._head, "choices": [choice]})
