"""Gemini `generateContent`: what Gemini CLI speaks.

The model's name and whether to stream are in the path, not in the body. Clients write field names in camel case or in
snake case; both are read. A tool's answer may name its call by id or only by the function's name.
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
from proxy_addons.dialects.reading import count
from proxy_addons.dialects.reading import dump
from proxy_addons.dialects.reading import image_content
from proxy_addons.dialects.reading import joined
from proxy_addons.dialects.reading import number
from proxy_addons.dialects.reading import offered_tools
from proxy_addons.dialects.reading import placeholder
from proxy_addons.dialects.reading import refuse
from proxy_addons.dialects.reading import strings
from proxy_addons.dialects.sse import event
from proxy_addons.dialects.sse import pieces
from proxy_addons.images import inline_image
from proxy_addons.images import linked_image

NAME = "gemini"
_METHODS: dict[str, Purpose] = {
    "generateContent": "generate",
    "streamGenerateContent": "stream",
    "countTokens": "count",
}
PATHS: dict[str, Purpose] = {
    f"/{version}/models/{{model}}:{method}": purpose
    for version in ("v1beta", "v1")
    for method, purpose in _METHODS.items()
}

_ERRORS = {
    "bad_request": "INVALID_ARGUMENT",
    "context_length": "INVALID_ARGUMENT",
    "unauthorized": "UNAUTHENTICATED",
    "not_found": "NOT_FOUND",
    "too_large": "INVALID_ARGUMENT",
    "budget": "RESOURCE_EXHAUSTED",
    "overloaded": "UNAVAILABLE",
    "internal": "INTERNAL",
}

_CODES = {"overloaded": 503}
"""Where Google's HTTP status is another than ours."""


def parse(body: Mapping[str, Any], headers: Mapping[str, str], memory: Memory | None = None) -> Request:
    """A generateContent (or countTokens) body as a `Request`. Raises `Problem` `bad_request` naming the field."""
    inner = _get(body, "generateContentRequest")
    if inner is not None:
        body = as_object(inner, "generateContentRequest")
    memory = memory or Memory()
    notes: list[str] = []
    messages = _system(_get(body, "systemInstruction"), notes)
    open_calls: list[ToolCall] = []
    for i, entry in enumerate(as_list(body.get("contents"), "contents")):
        messages += _turn(as_object(entry, f"contents[{i}]"), f"contents[{i}]", open_calls, notes)
    if all(message.role == "system" for message in messages):
        raise refuse("must not be empty", "contents")
    config = as_object(_get(body, "generationConfig") or {}, "generationConfig")
    if _get(config, "candidateCount") not in (None, 1):
        raise refuse("one candidate a call is all that is recorded; send 1 or leave it out", "candidateCount")
    camel = {name: _get(config, name) for name in ("maxOutputTokens", "temperature", "topP")}
    return Request(
        messages=tuple(messages),
        tools=offered_tools(memory.read(_tools, body.get("tools"), "tools", notes), _calling_mode(body), notes),
        model=as_text(body.get("model"), "model"),
        max_tokens=count(camel, "maxOutputTokens"),
        temperature=number(camel, "temperature"),
        top_p=number(camel, "topP"),
        stop=strings(_get(config, "stopSequences"), "stopSequences"),
        notes=tuple(dict.fromkeys(notes)),
    )


def _get(value: Mapping[str, Any], name: str) -> Any:
    """A field by its camel-case name, in either spelling."""
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    return value.get(name, value.get(snake))


def _calling_mode(body: Mapping[str, Any]) -> Any:
    config = as_object(_get(body, "toolConfig") or {}, "toolConfig")
    return as_object(_get(config, "functionCallingConfig") or {}, "toolConfig.functionCallingConfig").get("mode")


def _parts(content: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for i, entry in enumerate(as_list(as_object(content, where).get("parts"), f"{where}.parts")):
        yield f"{where}.parts[{i}]", as_object(entry, f"{where}.parts[{i}]")


def _system(content: Any, notes: list[str]) -> list[Message]:
    if content is None:
        return []
    if isinstance(content, str):
        content = {"parts": [{"text": content}]}
    given = joined(_read(part, where, notes) for where, part in _parts(content, "systemInstruction"))
    return [Message("system", given.text, flags=given.flags, images=given.images)] if given.text else []


def _turn(entry: Mapping[str, Any], where: str, open_calls: list[ToolCall], notes: list[str]) -> list[Message]:
    role = entry.get("role") or "user"
    if role == "model":
        message = _model(entry, where, notes)
        open_calls[:] = message.tool_calls
        return [message]
    if role in ("user", "function", "tool"):
        return _user(entry, where, open_calls, notes)
    raise refuse(f"{str(role)[:40]!r} is not one of user, model", f"{where}.role")


def _model(entry: Mapping[str, Any], where: str, notes: list[str]) -> Message:
    parts: list[Content] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for place, part in _parts(entry, where):
        call = _get(part, "functionCall")
        if call is not None:
            call = as_object(call, f"{place}.functionCall")
            name = as_name(call.get("name"), f"{place}.functionCall.name")
            given = as_text(call.get("id"), f"{place}.functionCall.id")
            calls.append(ToolCall(given or f"{name}_{len(calls)}", name, arguments_text(call.get("args"))))
        elif part.get("thought") is True:
            reasoning.append(as_text(part.get("text"), f"{place}.text"))
        else:
            parts.append(_read(part, place, notes))
    # The pieces of one text come back as one part or as many.
    said, thought = joined(parts, separator=""), "".join(reasoning)
    return Message("assistant", said.text, thought, tuple(calls), flags=said.flags, images=said.images)


def _user(entry: Mapping[str, Any], where: str, open_calls: list[ToolCall], notes: list[str]) -> list[Message]:
    """Tool answers as tool turns, and the runs of other parts around them as user turns, in the order given."""
    messages: list[Message] = []
    parts: list[Content] = []

    def flush() -> None:
        if parts:
            given = joined(parts)
            messages.append(Message("user", given.text, flags=given.flags, images=given.images))
            parts.clear()

    for place, part in _parts(entry, where):
        answer = _get(part, "functionResponse")
        if answer is None:
            parts.append(_read(part, place, notes))
        else:
            flush()
            messages.append(_tool_answer(as_object(answer, f"{place}.functionResponse"), place, open_calls, notes))
    flush()
    return messages or [Message("user")]


def _tool_answer(answer: Mapping[str, Any], where: str, open_calls: list[ToolCall], notes: list[str]) -> Message:
    name = as_text(answer.get("name"), f"{where}.functionResponse.name")
    given_id = as_text(answer.get("id"), f"{where}.functionResponse.id")
    call = next((c for c in open_calls if c.id == given_id or (not given_id and c.name == name)), None)
    if call is not None:
        open_calls.remove(call)
    response = as_object(answer.get("response") or {}, f"{where}.functionResponse.response")
    error = response.get("error")
    value = error if error is not None else response.get("output", response)
    text = value if isinstance(value, str) else dump(value)
    media = [_read(part, place, notes) for place, part in _parts(answer, f"{where}.functionResponse")]
    given = joined((Content(text), *media))
    if error is not None:
        given = joined((Content(TOOL_ERROR_MARK, ("tool_error",)), given), separator="")
    identity = call.id if call else given_id or name or None
    return Message("tool", given.text, tool_call_id=identity, flags=given.flags, images=given.images)


def _read(part: Mapping[str, Any], where: str, notes: list[str]) -> Content:
    if "text" in part:
        return Content(as_text(part["text"], f"{where}.text"))
    for name, field in (("inlineData", "data"), ("fileData", "fileUri")):
        given = _get(part, name)
        if given:
            return _media(as_object(given, f"{where}.{name}"), field, f"{where}.{name}")
    if set(part) <= {"thoughtSignature", "thought_signature", "thought"}:
        return Content()
    kind = next(iter(part))[:40]
    notes.append(f"unknown_block:{kind}")
    return Content(placeholder(f"part with {kind}"), ("unknown_block",))


def _media(given: Mapping[str, Any], field: str, where: str) -> Content:
    media_type = as_text(_get(given, "mimeType"), f"{where}.mimeType")
    kind = media_type.partition("/")[0]
    if kind == "image":
        value = as_name(_get(given, field), f"{where}.{field}")
        read = inline_image(value, media_type, where) if field == "data" else linked_image(value, where)
        return image_content(read)
    kind = kind if kind in ("audio", "video") else "document"
    return Content(placeholder(kind), (f"{kind}_omitted",))


def _tools(tools: Any, where: str, notes: list[str]) -> list[Tool]:
    read = []
    for i, entry in enumerate(as_list(tools, where)):
        tool = as_object(entry, f"{where}[{i}]")
        declarations = _get(tool, "functionDeclarations")
        notes += [f"hosted_tool_dropped:{str(kind)[:40]}" for kind in tool if not kind.startswith("function")]
        for j, item in enumerate(as_list(declarations, f"{where}[{i}].functionDeclarations")):
            place = f"{where}[{i}].functionDeclarations[{j}]"
            declared = as_object(item, place)
            schema = _get(declared, "parametersJsonSchema") or declared.get("parameters") or {"type": "object"}
            description = as_text(declared.get("description"), f"{place}.description")
            parameters = dict(as_object(schema, f"{place}.parameters"))
            read.append(Tool(as_name(declared.get("name"), f"{place}.name"), description, parameters))
    return read


def _usage(usage: Usage) -> dict[str, int]:
    known = {} if usage.cached_tokens is None else {"cachedContentTokenCount": usage.cached_tokens}
    return {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens,
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
        **known,
    }


def _call_part(call: ToolCall) -> dict[str, Any]:
    return {"functionCall": {"id": call.id, "name": call.name, "args": arguments_object(call.arguments)[0]}}


def _candidate(parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
    ended = {} if finish is None else {"finishReason": finish}
    return {"content": {"role": "model", "parts": parts}, "index": 0, **ended}


def _finish(reply: Reply) -> str:
    return "MAX_TOKENS" if reply.finish == "length" else "STOP"


def _head(reply: Reply) -> dict[str, Any]:
    return {"modelVersion": reply.model, "responseId": reply.id}


def reply_json(request: Request, reply: Reply) -> dict[str, Any]:
    """The reply as a `GenerateContentResponse`."""
    parts: list[dict[str, Any]] = []
    if reply.reasoning:
        parts.append({"text": reply.reasoning, "thought": True})
    if reply.content or not (reply.reasoning or reply.tool_calls):
        parts.append({"text": reply.content})
    parts += [_call_part(call) for call in reply.tool_calls]
    candidate = _candidate(parts, _finish(reply))
    return {"candidates": [candidate], "usageMetadata": _usage(reply.usage), **_head(reply)}


def count_json(tokens: int) -> dict[str, Any]:
    """The answer to countTokens."""
    return {"totalTokens": tokens}


def error_json(problem: Problem) -> dict[str, Any]:
    """A refusal; the same object is the data of an error event."""
    code = _CODES.get(problem.kind, problem.status)
    return {"error": {"code": code, "message": problem.message, "status": _ERRORS[problem.kind]}}


def open_stream(request: Request, reply_id: str, created: int) -> "ContentStream":
    """A stream for one reply."""
    return ContentStream()


class ContentStream:
    """The chunks of one reply, each a response of its own; the last one has the finish reason and the usage."""

    def start(self) -> bytes:
        return b""

    def keepalive(self) -> bytes:
        return event({"candidates": []})

    def error(self, problem: Problem) -> bytes:
        return event(error_json(problem))

    def reply(self, reply: Reply) -> Iterator[bytes]:
        parts: list[dict[str, Any]] = [{"text": piece, "thought": True} for piece in pieces(reply.reasoning)]
        parts += [{"text": piece} for piece in pieces(reply.content)]
        parts += [_call_part(call) for call in reply.tool_calls]
        *most, last = parts or [{"text": ""}]
        for part in most:
            yield event({"candidates": [_candidate([part])], **_head(reply)})
        end = _candidate([last], _finish(reply))
        yield event({"candidates": [end], "usageMetadata": _usage(reply.usage), **_head(reply)})
