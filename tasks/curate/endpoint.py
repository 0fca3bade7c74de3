"""Asks a model behind an OpenAI- or Anthropic-compatible endpoint one question at a time.

Directly, not through the recording proxy: that one answers model calls from a policy server, by token ids, and forwards
to no provider. So what was asked, answered and used is written down by who asks (`tasks.curate.model_proposer`).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import Literal

import httpx
from tenacity import AsyncRetrying
from tenacity import RetryCallState
from tenacity import RetryError
from tenacity import retry_if_exception_type
from tenacity import stop_after_attempt
from tenacity import wait_exponential_jitter

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError

TRIES = 6
ANSWER_S = 300.0
_LONGEST_WAIT_S = 60.0
_backoff = wait_exponential_jitter(initial=1, max=_LONGEST_WAIT_S)

Api = Literal["openai", "anthropic"]


@dataclass(frozen=True)
class Endpoint:
    """`base_url` is everything before /chat/completions or /messages. `key_env` names the variable that holds the key,
    None where none is needed."""

    api: Api
    base_url: str
    model: str
    key_env: str | None
    max_tokens: int

    def key(self) -> str | None:
        """The key. Raises ConfigError if its variable is not set."""
        if self.key_env is None:
            return None
        if not os.environ.get(self.key_env):
            raise ConfigError(f"endpoint.key_env: the environment has no {self.key_env}; set it to the endpoint's key")
        return os.environ[self.key_env]


@dataclass(frozen=True)
class Said:
    """An answer. `whole` is false if `max_tokens` cut it. Tokens are None where the endpoint tells none."""

    text: str
    whole: bool
    prompt_tokens: int | None
    sampled_tokens: int | None


class _Busy(Exception):
    """To be asked again, in `after_s` seconds if the endpoint said so."""

    def __init__(self, why: str, after_s: float | None = None) -> None:
        super().__init__(why)
        self.after_s = after_s


@dataclass(frozen=True)
class Asker:
    """An endpoint and the connections to it."""

    endpoint: Endpoint
    client: httpx.AsyncClient
    wait: Callable[[RetryCallState], float] = field(default=lambda state: _wait(state))

    async def ask(self, system: str, question: str) -> Said:
        """The answer to `question`. Asks again, at most `TRIES` times, if the endpoint is busy, broken or away.

        Raises ConfigError if it refuses (the key, the model, the request) and InfrastructureError if it stays away.
        """
        host = httpx.URL(self.endpoint.base_url).host
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(_Busy), stop=stop_after_attempt(TRIES), wait=self.wait
            ):
                with attempt:
                    return await self._once(system, question)
        except RetryError as error:
            why = error.last_attempt.exception()
            raise InfrastructureError(f"endpoint {host}: asked {TRIES} times; at last: {why}") from None
        raise AssertionError("tenacity returns or raises")

    async def _once(self, system: str, question: str) -> Said:
        path, headers, body = _request(self.endpoint, system, question)
        try:
            response = await self.client.post(f"{self.endpoint.base_url.rstrip('/')}{path}", headers=headers, json=body)
        except httpx.TransportError as error:
            raise _Busy(type(error).__name__) from None
        if response.status_code in (408, 409, 429) or response.status_code >= 500:
            raise _Busy(f"it answered {response.status_code}", _after_s(response))
        said = _json(response)
        if response.is_success:
            return _answer(self.endpoint.api, said)
        told = said.get("error") if isinstance(said.get("error"), dict) else said
        message = str(told.get("message", "no reason given"))[:200] if isinstance(told, dict) else "no reason given"
        if key := self.endpoint.key():
            message = message.replace(key, "…")
        field_ = {401: "key_env", 403: "key_env", 404: "model"}.get(response.status_code, "base_url")
        raise ConfigError(f"endpoint.{field_}: {self.endpoint.base_url} answered {response.status_code}: {message}")


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    told = error.after_s if isinstance(error, _Busy) else None
    return _backoff(state) if told is None else min(told, _LONGEST_WAIT_S)


def _after_s(response: httpx.Response) -> float | None:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):  # a date is not worth a parser
        return None


def _request(endpoint: Endpoint, system: str, question: str) -> tuple[str, dict[str, str], dict[str, Any]]:
    key = endpoint.key()
    user = {"role": "user", "content": question}
    body: dict[str, Any] = {"model": endpoint.model, "max_tokens": endpoint.max_tokens}
    if endpoint.api == "anthropic":
        headers = {"anthropic-version": "2023-06-01"} | ({"x-api-key": key} if key else {})
        return "/messages", headers, body | {"system": system, "messages": [user]}
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return "/chat/completions", headers, body | {"messages": [{"role": "system", "content": system}, user]}


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        said = response.json()
    except ValueError:
        said = None
    if not isinstance(said, dict):
        if response.is_success:
            raise _Busy("its answer is not a JSON object")
        return {}
    return said


def _answer(api: Api, said: dict[str, Any]) -> Said:
    """The answer in a body of `api`. Raises _Busy if there is none in it."""
    try:
        usage = said.get("usage") or {}
        if api == "anthropic":
            text = "".join(block["text"] for block in said["content"] if block["type"] == "text")
            return Said(
                text, said["stop_reason"] != "max_tokens", _count(usage, "input_tokens"), _count(usage, "output_tokens")
            )
        choice = said["choices"][0]
        return Said(
            choice["message"]["content"] or "",
            choice["finish_reason"] != "length",
            _count(usage, "prompt_tokens"),
            _count(usage, "completion_tokens"),
        )
    except (KeyError, IndexError, TypeError, AttributeError):
        raise _Busy(f"its answer has not the form of the {api} API") from None


def _count(usage: dict[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) else None
