"""OpenAI Responses: what Codex speaks.

The input is a flat list of items; consecutive reasoning, message and call items of the assistant are one turn. A
custom (freeform) tool is shown to the policy as a function with the one string argument `input` (case O05), and a tool
in a namespace as `namespace__name`; both get their own spelling back on the wire.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from proxy_addons.conversation import Message
from proxy_addons.conversation import Problem
from proxy_addons.conversation import Reply
from proxy_addons.conversation import Request
from proxy_addons.conversation import Role
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from proxy_addons.conversation import Usage
from proxy_addons.dialects import Purpose
from proxy_addons.dialects.memory import Memory
from proxy_addons.dialects.reading import Content
from proxy_addons.dialects.reading import as_list
from proxy_addons.dialects.reading import as_name
from proxy_addons.dialects.reading import as_object
from proxy_addons.dialects.reading import as_text
from proxy_addons.dialects.reading import content_of
from proxy_addons.dialects.reading import count
from proxy_addons.dialects.reading import dump
from proxy_addons.dialects.reading import header
from proxy_addons.dialects.reading import joined
from proxy_addons.dialects.reading import number
from proxy_addons.dialects.reading import object_in
from proxy_addons.dialects.reading import offered_tools
from proxy_addons.dialects.reading import placeholder
from proxy_addons.dialects.reading import refuse
from proxy_addons.dialects.sse import event
from proxy_addons.dialects.sse import pieces

NAME = "openai_responses"
PATHS: dict[str, Purpose] = {"/v1/responses": "generate", "/v1/responses/input_tokens": "count"}

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

# Codex gives up at once on an "overloaded" code in a stream and retries a server error; the engine comes back.
_CODES = {
    "bad_request": "invalid_prompt",
    "context_length": "context_length_exceeded",
    "unauthorized": "invalid_api_key",
    "not_found": "not_found",
    "too_large": "request_too_large",
    "budget": "rate_limit_exceeded",
    "overloaded": "server_error",
    "internal": "server_error",
}


def parse(body: Mapping[str, Any], headers: Mapping[str, str], memory: Memory | None = None) -> Request:
    """A Responses body as a `Request`. Raises `Problem` `bad_request` naming the field."""
    if body.get("previous_response_id") is not None:
        raise refuse("nothing is stored here; send the whole input", "previous_response_id")
    reader = _Reader(memory or Memory(), notes=list(_compaction(headers)))
    instructions = as_text(body.get("instructions"), "instructions")
    if instructions:
        reader.messages.append(Message("system", instructions))
    reader.read_tools(body.get("tools"), "tools")
    given = body.get("input")
    if isinstance(given, str):
        reader.messages.append(Message("user", given))
    else:
        for i, item in enumerate(as_list(given, "input")):
            reader.read_item(as_object(item, f"input[{i}]"), f"input[{i}]")
    reader.close_turn()
    if not reader.messages:
        raise refuse("must not be empty", "input")
    return Request(
        messages=tuple(reader.messages),
        tools=offered_tools(reader.tools, body.get("tool_choice"), reader.notes),
        model=as_text(body.get("model"), "model"),
        max_tokens=count(body, "max_output_tokens"),
        temperature=number(body, "temperature"),
        top_p=number(body, "top_p"),
        stream=bool(body.get("stream")),
        agent=_agent(headers),
        notes=tuple(dict.fromkeys(reader.notes)),
    )


def _agent(headers: Mapping[str, str]) -> str | None:
    """A sub-agent's thread; the root thread has the session's id."""
    thread = header(headers, "thread-id")
    return thread if thread != header(headers, "session-id") else None


def _compaction(headers: Mapping[str, str]) -> Iterator[str]:
    """Codex says in its headers what a request is for, and counts its windows up at each compaction (case O42)."""
    turn = object_in(header(headers, "x-codex-turn-metadata") or "") or {}
    if turn.get("request_kind") == "compaction":
        yield "compaction_request"
    window = (header(headers, "x-codex-window-id") or "").rpartition(":")[2]
    if window.isdecimal() and int(window) > 0:
        yield "compaction"


@dataclass
class _Reader:
    """What was read so far; the three lists of the open assistant turn are empty between turns."""

    memory: Memory
    messages: list[Message] = field(default_factory=list)
    tools: list[Tool] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    turn_open: bool = False
    parts: list[Content] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def close_turn(self) -> None:
        if not self.turn_open:
            return
        given, reasoning = joined(self.parts), "\n".join(filter(None, self.reasoning))
        self.messages.append(
            Message("assistant", given.text, reasoning, tuple(self.calls), flags=given.flags, images=given.images)
        )
        self.turn_open = False
        self.parts.clear()
        self.reasoning.clear()
        self.calls.clear()

    def read_item(self, item: Mapping[str, Any], where: str) -> None:
        kind = item.get("type", "message")
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            self.turn_open = True
            summary = self._content(item, "summary", where)
            content = self._content(item, "content", where)
            self.reasoning.append(content.text or summary.text)
        elif kind in ("function_call", "custom_tool_call"):
            self._call(item, where)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self.close_turn()
            given = self._content(item, "output", where)
            call_id = as_name(item.get("call_id"), f"{where}.call_id")
            message = Message("tool", given.text, tool_call_id=call_id, flags=given.flags, images=given.images)
            self.messages.append(message)
        elif kind == "additional_tools":
            self.read_tools(item.get("tools"), f"{where}.tools")
        elif kind == "item_reference":
            raise refuse("nothing is stored here; send the item itself", where)
        else:
            self.close_turn()
            name = as_name(kind, f"{where}.type")[:40]
            self.notes.append(f"unknown_item:{name}")
            self.messages.append(Message("user", placeholder(f"item of type {name}"), flags=("unknown_item",)))

    def _content(self, item: Mapping[str, Any], name: str, where: str) -> Content:
        return self.memory.read(content_of, item.get(name), f"{where}.{name}", self.notes)

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise refuse(f"{str(role)[:40]!r} is not one of {', '.join(_ROLES)}", f"{where}.role")
        given = self._content(item, "content", where)
        if role == "assistant":
            self.turn_open = True
            self.parts.append(given)
            return
        self.close_turn()
        speaker: Role = "user" if role == "user" else "system"
        self.messages.append(Message(speaker, given.text, flags=given.flags, images=given.images))

    def _call(self, item: Mapping[str, Any], where: str) -> None:
        name = as_name(item.get("name"), f"{where}.name")
        namespace = as_text(item.get("namespace"), f"{where}.namespace")
        if item["type"] == "custom_tool_call":
            arguments = dump({"input": as_text(item.get("input"), f"{where}.input")})
        else:
            arguments = as_text(item.get("arguments"), f"{where}.arguments")
        self.turn_open = True
        call_id = as_name(item.get("call_id"), f"{where}.call_id")
        self.calls.append(ToolCall(call_id, _flat(namespace or None, name), arguments))

    def read_tools(self, tools: Any, where: str, namespace: str | None = None) -> None:
        for i, entry in enumerate(as_list(tools, where)):
            place = f"{where}[{i}]"
            tool = as_object(entry, place)
            kind = tool.get("type")
            if kind == "namespace":
                self.read_tools(tool.get("tools"), f"{place}.tools", as_name(tool.get("name"), f"{place}.name"))
                continue
            if kind not in ("function", "custom"):
                # Run by the provider (web search and the like): there is no provider here.
                self.notes.append(f"hosted_tool_dropped:{str(kind)[:40]}")
                continue
            name = _flat(namespace, as_name(tool.get("name"), f"{place}.name"))
            description = as_text(tool.get("description"), f"{place}.description")
            if kind == "custom":
                self.tools.append(Tool(name, description, _freeform(tool), "custom", namespace))
            else:
                schema = dict(as_object(tool.get("parameters") or {}, f"{place}.parameters"))
                self.tools.append(Tool(name, description, schema, "function", namespace))


def _flat(namespace: str | None, name: str) -> str:
    return f"{namespace}__{name}" if namespace else name


def _freeform(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a custom tool as the policy sees them, its grammar told in words."""
    argument = {"type": "string"}
    form = tool.get("format")
    if isinstance(form, Mapping) and isinstance(form.get("definition"), str):
        argument["description"] = f"Raw text in this {form.get('syntax', '')} grammar:\n{form['definition']}"
    return {"type": "object", "properties": {"input": argument}, "required": ["input"], "additionalProperties": False}


def _usage(usage: Usage) -> dict[str, Any]:
    known = {} if usage.cached_tokens is None else {"input_tokens_details": {"cached_tokens": usage.cached_tokens}}
    return {
        "input_tokens": usage.prompt_tokens,
        **known,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _items(request: Request, reply: Reply) -> list[dict[str, Any]]:
    """The reply's output items, whole. An item that the length limit cut is `incomplete` (case O06)."""
    items: list[dict[str, Any]] = []
    if reply.reasoning:
        content = [{"type": "reasoning_text", "text": reply.reasoning}]
        items.append({"id": f"rs_{reply.id}", "type": "reasoning", "summary": [], "content": content})
    if reply.content or not (reply.reasoning or reply.tool_calls):
        text = {"type": "output_text", "text": reply.content, "annotations": []}
        items.append({"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "content": [text]})
    tools = {tool.name: tool for tool in request.tools}
    for n, call in enumerate(reply.tool_calls):
        items.append(_call_item(call, tools.get(call.name), f"{reply.id}_{n}"))
    for item in items:
        item["status"] = "completed"
    if reply.finish == "length":
        items[-1]["status"] = "incomplete"
    return items


def _call_item(call: ToolCall, tool: Tool | None, suffix: str) -> dict[str, Any]:
    """A call in the spelling of its tool.

    A call of a custom tool that is not `{"input": text}` keeps its arguments as a function call: the harness refuses to
    run it, and the turn comes back as it was sampled.
    """
    item: dict[str, Any] = {"call_id": call.id, "name": call.name}
    if tool is not None and tool.namespace is not None:
        item |= {"name": call.name.removeprefix(f"{tool.namespace}__"), "namespace": tool.namespace}
    value = object_in(call.arguments)
    if tool is not None and tool.kind == "custom" and value and set(value) == {"input"}:
        text = value["input"]
        if isinstance(text, str):
            return {"id": f"ctc_{suffix}", "type": "custom_tool_call", **item, "input": text}
    return {"id": f"fc_{suffix}", "type": "function_call", **item, "arguments": call.arguments}


def _response(reply_id: str, created: int, model: str) -> dict[str, Any]:
    """A response that has only begun."""
    return {
        "id": f"resp_{reply_id}",
        "object": "response",
        "created_at": created,
        "model": model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }


def reply_json(request: Request, reply: Reply) -> dict[str, Any]:
    """The reply as a `response` object."""
    cut = reply.finish == "length"
    return {
        **_response(reply.id, reply.created, reply.model),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _items(request, reply),
        "usage": _usage(reply.usage),
    }


def count_json(tokens: int) -> dict[str, Any]:
    """The answer to input_tokens, which no known harness asks for."""
    return {"object": "response.input_tokens", "input_tokens": tokens}


def error_json(problem: Problem) -> dict[str, Any]:
    """A refusal before the stream."""
    kind = "invalid_request_error" if problem.status < 429 else "server_error"
    kind = "rate_limit_error" if problem.status == 429 else kind
    code = _CODES[problem.kind]
    return {"error": {"message": problem.message, "type": kind, "param": problem.param, "code": code}}


def open_stream(request: Request, reply_id: str, created: int) -> "ResponseStream":
    """A stream for one reply."""
    return ResponseStream(request, reply_id, created)


class ResponseStream:
    """The events of one response: one sequence of numbers, and the same ids from the first event to the last."""

    def __init__(self, request: Request, reply_id: str, created: int) -> None:
        self._request = request
        self._begun = _response(reply_id, created, request.model)
        self._number = 0

    def start(self) -> bytes:
        return self._event("response.created", response=self._begun) + self.keepalive()

    def keepalive(self) -> bytes:
        """Codex takes any typed event for a sign of life, and no comment line."""
        return self._event("response.in_progress", response=self._begun)

    def error(self, problem: Problem) -> bytes:
        error = {"code": _CODES[problem.kind], "message": problem.message}
        return self._event("response.failed", response={**self._begun, "status": "failed", "error": error})

    def reply(self, reply: Reply) -> Iterator[bytes]:
        response = reply_json(self._request, reply)
        for index, item in enumerate(response["output"]):
            place = {"item_id": item["id"], "output_index": index}
            yield self._event("response.output_item.added", output_index=index, item=_opened(item))
            if item["type"] == "function_call":
                text = item["arguments"]
                yield from self._text("function_call_arguments", "arguments", text, place, name=item["name"])
            elif item["type"] == "custom_tool_call":
                yield from self._text("custom_tool_call_input", "input", item["input"], place)
            else:
                yield from self._part(item["content"][0], place)
            yield self._event("response.output_item.done", output_index=index, item=item)
        last = "response.incomplete" if response["status"] == "incomplete" else "response.completed"
        yield self._event(last, response=response)

    def _part(self, part: dict[str, Any], place: dict[str, Any]) -> Iterator[bytes]:
        place = {**place, "content_index": 0}
        yield self._event("response.content_part.added", **place, part={**part, "text": ""})
        # A client's own type for the text events also asks for token probabilities; there are none to show.
        extra: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
        yield from self._text(part["type"], "text", part["text"], {**place, **extra})
        yield self._event("response.content_part.done", **place, part=part)

    def _text(self, kind: str, key: str, text: str, place: dict[str, Any], **done: str) -> Iterator[bytes]:
        for piece in pieces(text):
            yield self._event(f"response.{kind}.delta", **place, delta=piece)
        yield self._event(f"response.{kind}.done", **place, **done, **{key: text})

    def _event(self, kind: str, **data: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({"type": kind, "sequence_number": number, **data}, name=kind)


def _opened(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is first shown: nothing in it yet."""
    empty = {"content": [], "arguments": "", "input": ""}
    return {**item, "status": "in_progress", **{key: value for key, value in empty.items() if key in item}}
