"""A harness's side of all four dialects: one neutral history, said to a proxy in the dialect's own shape.

A history is a list of what came to be: a string is a user's turn, a dict an answer as it was received, a `Result` what
a tool said to a call of the answer before it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest

import proxy_addons.__main__
from proxy_addons.gateway import Gateway
from tests.proxy_addons.dialects.wire import Event
from tests.proxy_addons.dialects.wire import assemble
from tests.proxy_addons.dialects.wire import decode

NAMES = ("anthropic_messages", "openai_responses", "openai_chat", "gemini")
SCHEMA = {"type": "object", "properties": {"cmd": {"type": "string"}}}


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: Any


@dataclass(frozen=True)
class Result:
    call: Call
    text: str


History = Sequence["str | dict[str, Any] | Result"]


def body(
    name: str,
    history: History,
    *,
    system: str = "",
    tools: Sequence[str] = ("sh",),
    stream: bool = False,
    max_tokens: int | None = None,
) -> dict[str, Any]:
    """The request's body in dialect `name`."""
    return {
        "anthropic_messages": _messages,
        "openai_responses": _responses,
        "openai_chat": _chat,
        "gemini": _gemini,
    }[name](history, system, tools, stream, max_tokens)


def path(name: str, stream: bool = False) -> str:
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return {
        "anthropic_messages": "/v1/messages?beta=true",
        "openai_responses": "/v1/responses",
        "openai_chat": "/v1/chat/completions",
        "gemini": f"/v1beta/models/policy-v1:{method}",
    }[name]


async def ask(client: httpx.AsyncClient, name: str, history: History, **how: Any) -> dict[str, Any]:
    """Send and read the answer, in the shape of a non-streaming one in either mode."""
    stream = bool(how.get("stream"))
    answer = await client.post(path(name, stream), json=body(name, history, **how))
    assert answer.status_code == 200, answer.text
    return assemble(name, decode([answer.content])) if stream else answer.json()


def calls(name: str, answer: dict[str, Any]) -> list[Call]:
    """The tool calls of an answer."""
    if name == "anthropic_messages":
        return [Call(b["id"], b["name"], b["input"]) for b in answer["content"] if b["type"] == "tool_use"]
    if name == "openai_responses":
        items = [item for item in answer["output"] if item["type"] == "function_call"]
        return [Call(item["call_id"], item["name"], json.loads(item["arguments"])) for item in items]
    if name == "openai_chat":
        made = answer["choices"][0]["message"].get("tool_calls") or []
        return [Call(c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in made]
    parts = [p["functionCall"] for p in answer["candidates"][0]["content"]["parts"] if "functionCall" in p]
    return [Call(p["id"], p["name"], p["args"]) for p in parts]


def text(name: str, answer: dict[str, Any]) -> str:
    """The visible text of an answer."""
    if name == "anthropic_messages":
        return "".join(b["text"] for b in answer["content"] if b["type"] == "text")
    if name == "openai_responses":
        return "".join(part["text"] for i in answer["output"] if i["type"] == "message" for part in i["content"])
    if name == "openai_chat":
        return answer["choices"][0]["message"]["content"] or ""
    return "".join(p.get("text", "") for p in answer["candidates"][0]["content"]["parts"] if not p.get("thought"))


def has_ended_well(name: str, events: Sequence[Event]) -> bool:
    """Whether a harness would take these events for a whole reply."""
    data = [data for _, data in events]
    if name == "anthropic_messages":
        return any(d["type"] == "message_stop" for d in data)
    if name == "openai_responses":
        return any(d["type"] in ("response.completed", "response.incomplete") for d in data)
    if name == "openai_chat":
        return "[DONE]" in data
    return any("finishReason" in candidate for d in data for candidate in d.get("candidates", ()))


def error_message(name: str, event: Event) -> str:
    """What an error event says."""
    data = event[1]
    return data["response"]["error"]["message"] if name == "openai_responses" else data["error"]["message"]


def be_impatient(monkeypatch: pytest.MonkeyPatch, grace_s: float = 0.1, keepalive_s: float = 0.2) -> None:
    """Let a `recording` that starts from now on open its streams, and keep them alive, sooner than in production."""
    gateway = partial(Gateway, grace_s=grace_s, keepalive_s=keepalive_s)
    monkeypatch.setattr(proxy_addons.__main__, "Gateway", gateway)


def _messages(history: History, system: str, tools: Sequence[str], stream: bool, limit: int | None) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for entry in history:
        if isinstance(entry, str):
            messages.append({"role": "user", "content": entry})
        elif isinstance(entry, Result):
            block = {"type": "tool_result", "tool_use_id": entry.call.id, "content": entry.text}
            if messages and isinstance(messages[-1]["content"], list) and messages[-1]["role"] == "user":
                messages[-1]["content"].append(block)
            else:
                messages.append({"role": "user", "content": [block]})
        else:
            messages.append({"role": "assistant", "content": entry["content"]})
    return {
        "model": "policy-v1",
        "max_tokens": limit or 32_000,
        "messages": messages,
        "tools": [{"name": name, "input_schema": SCHEMA} for name in tools],
        "stream": stream,
        **({"system": [{"type": "text", "text": system}]} if system else {}),
    }


def _chat(history: History, system: str, tools: Sequence[str], stream: bool, limit: int | None) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for entry in history:
        if isinstance(entry, str):
            messages.append({"role": "user", "content": entry})
        elif isinstance(entry, Result):
            messages.append({"role": "tool", "tool_call_id": entry.call.id, "content": entry.text})
        else:
            messages.append(entry["choices"][0]["message"])
    functions = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in tools]
    asked = {"max_tokens": limit} if limit else {}
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return {"model": "policy-v1", "messages": messages, "tools": functions, **asked, **more}


def _responses(history: History, system: str, tools: Sequence[str], stream: bool, limit: int | None) -> dict[str, Any]:
    items: list[dict[str, Any]] = [{"role": "developer", "content": system}] if system else []
    for entry in history:
        if isinstance(entry, str):
            items.append({"role": "user", "content": [{"type": "input_text", "text": entry}]})
        elif isinstance(entry, Result):
            items.append({"type": "function_call_output", "call_id": entry.call.id, "output": entry.text})
        else:
            items += entry["output"]
    functions = [{"type": "function", "name": name, "parameters": SCHEMA} for name in tools]
    asked = {"max_output_tokens": limit} if limit else {}
    return {"model": "policy-v1", "input": items, "tools": functions, "stream": stream, **asked}


def _gemini(history: History, system: str, tools: Sequence[str], stream: bool, limit: int | None) -> dict[str, Any]:
    contents: list[dict[str, Any]] = []
    for entry in history:
        if isinstance(entry, str):
            contents.append({"role": "user", "parts": [{"text": entry}]})
        elif isinstance(entry, Result):
            answer = {"id": entry.call.id, "name": entry.call.name, "response": {"output": entry.text}}
            contents.append({"role": "user", "parts": [{"functionResponse": answer}]})
        else:
            contents.append(entry["candidates"][0]["content"])
    declared = [{"functionDeclarations": [{"name": name, "parameters": SCHEMA} for name in tools]}] if tools else []
    instruction = {"systemInstruction": {"parts": [{"text": system}]}} if system else {}
    asked = {"generationConfig": {"maxOutputTokens": limit}} if limit else {}
    return {"contents": contents, "tools": declared, **instruction, **asked}
