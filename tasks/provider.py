"""A model behind somebody's API, OpenAI- or Anthropic-compatible: a judge, a proposer of tasks, a teacher, or a policy
to compare with. The key comes from an environment variable and is never written anywhere.
"""

import asyncio
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import Literal
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import field_validator
from tenacity import AsyncRetrying
from tenacity import RetryCallState
from tenacity import retry_if_exception
from tenacity import stop_after_attempt
from tenacity import wait_random_exponential

from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError

_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_MAX_WAIT_S = 60.0
_ANTHROPIC_VERSION = "2023-06-01"


class Provider(BaseModel):
    """Where the model is, and what it may cost. No error repeats a value: a key in the wrong field gets into no log."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    api: Literal["openai", "anthropic"] = Field(default="openai", description="the API that it speaks")
    base_url: str = Field(description="what the API's paths follow, such as https://host/v1")
    model: str = Field(min_length=1, description="the model's name there")
    key_env: str | None = Field(
        default=None, description="name of the environment variable that holds the key; empty: no key"
    )
    max_tokens: int = Field(default=2048, ge=1, description="most tokens per answer")
    at_once: int = Field(default=4, ge=1, le=256, description="requests at a time")
    timeout_s: float = Field(default=120.0, gt=0, description="seconds until a request has failed")
    prompt_usd: float = Field(default=0.0, ge=0, description="USD per million prompt tokens")
    sampled_usd: float = Field(default=0.0, ge=0, description="USD per million sampled tokens")
    max_usd: float | None = Field(
        default=None, gt=0, description="nothing more is asked once this is spent; needs prices; empty: no limit"
    )

    @property
    def name(self) -> str:
        """The model in words."""
        return f"{self.model} at {self.base_url}"

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ValueError("write it as https://HOST/v1, without a key in it")
        return value.rstrip("/")

    @field_validator("key_env")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
            raise ValueError("give the name of an environment variable, not the key itself")
        return value

    @field_validator("max_usd")
    @classmethod
    def _has_prices(cls, value: float | None, info: Any) -> float | None:
        if value is not None and not (info.data.get("prompt_usd") or info.data.get("sampled_usd")):
            raise ValueError("a limit needs prompt_usd and sampled_usd to count against")
        return value


@dataclass(frozen=True)
class Answer:
    """What was said, and the tokens that the provider counted, None where it tells none. `cut`: it reached its limit of
    tokens."""

    message: Message
    cut: bool
    prompt_tokens: int | None
    sampled_tokens: int | None


class OverBudget(InfrastructureError):
    """`max_usd` is spent."""


class Refused(InfrastructureError):
    """The provider will not answer this, however often it is asked."""


class Client:
    """Asks one provider. `spent_usd` is what all answers cost so far, with what was `spent_usd` before."""

    def __init__(self, provider: Provider, spent_usd: float = 0.0) -> None:
        """Raises ConfigError if the key's variable is not set."""
        self.provider = provider
        self.spent_usd = spent_usd
        self._key = os.environ.get(provider.key_env, "") if provider.key_env else ""
        if provider.key_env and not self._key:
            raise ConfigError(f"key_env: the environment variable {provider.key_env} is not set; put the key in it")
        self._slots = asyncio.Semaphore(provider.at_once)

    async def ask(self, system: str, user: str) -> str:
        """The text that answers one question; see `chat`."""
        answer = await self.chat([Message("system", system), Message("user", user)])
        return answer.message.content

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> Answer:
        """The next turn of a conversation. Raises OverBudget, Refused with the provider's own words, or
        InfrastructureError if it stays away or answers in another form."""
        limit = self.provider.max_usd
        body: dict[str, Any] = {"model": self.provider.model, "max_tokens": max_tokens or self.provider.max_tokens}
        if temperature is not None:
            body["temperature"] = temperature
        anthropic = self.provider.api == "anthropic"
        body |= _anthropic(messages, tools) if anthropic else _openai(messages, tools)
        async with self._slots:
            if limit is not None and self.spent_usd >= limit:
                raise OverBudget(f"{self.provider.model}: the limit of {limit:g} USD is spent")
            said = await self._post(body)
            try:
                answer = (_read_anthropic if anthropic else _read_openai)(said)
            except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
                raise InfrastructureError(f"{self.provider.model}: the answer has another form: {error!r}") from None
            cost = self.cost(answer)
            if cost is None and limit is not None:
                raise InfrastructureError(f"{self.provider.model}: it tells no tokens, so max_usd cannot be kept")
            self.spent_usd += cost or 0.0
            return answer

    def cost(self, answer: Answer) -> float | None:
        """USD; None where the provider tells no tokens or no price is known."""
        prompt, sampled = self.provider.prompt_usd, self.provider.sampled_usd
        if answer.prompt_tokens is None or answer.sampled_tokens is None or not (prompt or sampled):
            return None
        return (prompt * answer.prompt_tokens + sampled * answer.sampled_tokens) / 1e6

    async def _post(self, body: dict[str, Any]) -> Any:
        model = self.provider.model
        if self.provider.api == "anthropic":
            path, headers = "/messages", {"x-api-key": self._key, "anthropic-version": _ANTHROPIC_VERSION}
        else:
            path, headers = "/chat/completions", {"authorization": f"Bearer {self._key}"} if self._key else {}
        retrying = AsyncRetrying(
            stop=stop_after_attempt(5), wait=_wait, retry=retry_if_exception(_may_pass), reraise=True
        )
        try:
            async with httpx.AsyncClient(timeout=self.provider.timeout_s) as http:
                async for attempt in retrying:
                    with attempt:
                        answer = await http.post(self.provider.base_url + path, json=body, headers=headers)
                        answer.raise_for_status()
                return answer.json()
        except httpx.HTTPStatusError as error:
            status, said = error.response.status_code, error.response.text[:200]
            told = said.replace(self._key, "…") if self._key else said
            kind = InfrastructureError if status in _PASSING else Refused
            raise kind(f"{model}: status {status}: {told}") from None
        except (httpx.HTTPError, ValueError) as error:
            raise InfrastructureError(f"{model} at {self.provider.base_url}: {error!r}") from None


def _openai(messages: Sequence[Message], tools: Sequence[Tool]) -> dict[str, Any]:
    turns: list[dict[str, Any]] = []
    for message in messages:
        turn: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            turn["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.tool_calls
            ]
        if message.role == "tool":
            turn["tool_call_id"] = message.tool_call_id
        turns.append(turn)
    listed = [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in tools
    ]
    return {"messages": turns} | ({"tools": listed} if listed else {})


def _anthropic(messages: Sequence[Message], tools: Sequence[Tool]) -> dict[str, Any]:
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system":
            continue
        text = [{"type": "text", "text": message.content}] if message.content else []
        blocks: list[dict[str, Any]] = [
            *text,
            *(
                {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
                for call in message.tool_calls
            ),
        ]
        if message.role == "tool":
            blocks = [{"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}]
        role = "user" if message.role == "tool" else message.role
        if turns and turns[-1]["role"] == role:  # results of calls side by side belong in one turn
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    listed = [{"name": t.name, "description": t.description, "input_schema": t.parameters} for t in tools]
    system = "\n\n".join(message.content for message in messages if message.role == "system")
    return {"messages": turns} | ({"system": system} if system else {}) | ({"tools": listed} if listed else {})


def _read_openai(said: Any) -> Answer:
    usage, choice = said.get("usage") or {}, said["choices"][0]
    message = choice["message"]
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    )
    text = message.get("content") or ""
    cut = choice.get("finish_reason") == "length"
    return Answer(
        Message("assistant", text, tool_calls=calls), cut, usage.get("prompt_tokens"), usage.get("completion_tokens")
    )


def _read_anthropic(said: Any) -> Answer:
    usage = said.get("usage") or {}
    text = "".join(block["text"] for block in said["content"] if block["type"] == "text")
    calls = tuple(
        ToolCall(block["id"], block["name"], json.dumps(block["input"], ensure_ascii=False))
        for block in said["content"]
        if block["type"] == "tool_use"
    )
    cut = said.get("stop_reason") == "max_tokens"
    return Answer(
        Message("assistant", text, tool_calls=calls), cut, usage.get("input_tokens"), usage.get("output_tokens")
    )


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _PASSING
    return isinstance(error, httpx.TransportError)


def _wait(state: RetryCallState) -> float:
    """What the provider asks for, or ever longer."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.response.headers.get("retry-after", "") if isinstance(error, httpx.HTTPStatusError) else ""
    if asked.isdigit():
        return min(float(asked), _MAX_WAIT_S)
    return wait_random_exponential(multiplier=1, max=_MAX_WAIT_S)(state)
