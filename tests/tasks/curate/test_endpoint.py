"""Asking an endpoint, over real sockets: both APIs, its moods, and that the key is in its header and nowhere else."""

from typing import Any

import httpx
import pytest
from aiohttp import web
from tenacity import wait_none

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from tasks.curate.endpoint import TRIES
from tasks.curate.endpoint import Api
from tasks.curate.endpoint import Asker
from tasks.curate.endpoint import Endpoint
from tasks.curate.endpoint import Said
from tests.tasks.curate.provider import Provider
from tests.tasks.curate.provider import serving

KEY = "sk-very-secret"
APIS = pytest.mark.parametrize("api", ["openai", "anthropic"])


async def ask(provider: Provider, api: Api, **given: Any) -> Said:
    async with serving(provider), httpx.AsyncClient() as client:
        endpoint = Endpoint(api, given.get("url", provider.url), "m-1", given.get("key_env"), 300)
        return await Asker(endpoint, client, wait_none()).ask("Be brief.", "What?")


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PROVIDER_KEY", KEY)
    return "PROVIDER_KEY"


@APIS
async def test_the_answer_and_its_tokens(api: Api, key: str) -> None:
    provider = Provider(lambda question, _: f"to {question}")
    assert await ask(provider, api, key_env=key) == Said("to What?", True, 100, 20)
    body, headers = provider.asked[0]
    assert (body["model"], body["max_tokens"]) == ("m-1", 300)
    assert (headers["x-api-key"] if api == "anthropic" else headers["authorization"]) in (KEY, f"Bearer {KEY}")
    assert "Be brief." in str(body) and KEY not in str(body)


@APIS
async def test_without_a_key_none_is_sent(api: Api) -> None:
    provider = Provider(lambda *_: "yes")
    await ask(provider, api)
    assert not {"authorization", "x-api-key"} & provider.asked[0][1].keys()


@pytest.mark.parametrize(("api", "finish"), [("openai", "length"), ("anthropic", "max_tokens")])
async def test_a_cut_answer_says_so(api: Api, finish: str) -> None:
    assert await ask(Provider(lambda *_: "hal", finish=finish), api) == Said("hal", False, 100, 20)


@APIS
async def test_tokens_that_are_not_told_are_unknown_and_not_0(api: Api) -> None:
    assert await ask(Provider(lambda *_: "yes", usage=False), api) == Said("yes", True, None, None)


@APIS
async def test_a_busy_endpoint_is_asked_again(api: Api) -> None:
    moods = [
        lambda: web.Response(status=429, headers={"retry-after": "0"}),
        lambda: web.Response(status=503),
        lambda: web.json_response({"odd": 1}),
        lambda: web.Response(text="no json"),
    ]
    provider = Provider(lambda _, number: moods[number - 1]() if number <= len(moods) else "at last")
    assert (await ask(provider, api)).text == "at last"
    assert len(provider.asked) == len(moods) + 1


async def test_one_that_stays_busy_is_our_failure_and_told_in_a_line() -> None:
    provider = Provider(lambda *_: web.Response(status=529))
    with pytest.raises(InfrastructureError, match=r"endpoint 127.0.0.1: asked 6 times; at last: it answered 529"):
        await ask(provider, "openai")
    assert len(provider.asked) == TRIES


async def test_one_that_is_not_there_too() -> None:
    with pytest.raises(InfrastructureError, match=r"at last: ConnectError"):
        await ask(Provider(lambda *_: ""), "openai", url="http://127.0.0.1:9/v1")


@pytest.mark.parametrize(("status", "field"), [(401, "key_env"), (404, "model"), (400, "base_url")])
async def test_a_refusal_names_the_field_and_never_the_key(status: int, field: str, key: str) -> None:
    told = {"error": {"message": f"wrong: {KEY}"}}
    provider = Provider(lambda *_: web.json_response(told, status=status))
    with pytest.raises(ConfigError) as refusal:
        await ask(provider, "openai", key_env=key)
    assert str(refusal.value) == f"endpoint.{field}: {provider.url} answered {status}: wrong: …"
    assert len(provider.asked) == 1


def test_a_key_that_is_not_set_is_told_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"endpoint\.key_env: the environment has no NO_KEY"):
        Endpoint("openai", "http://x/v1", "m", "NO_KEY", 300).key()


@pytest.mark.parametrize(("told", "waited"), [("7", 7.0), ("3600", 60.0)])
def test_it_waits_as_long_as_it_is_told_within_reason(told: str, waited: float) -> None:
    from tenacity import Future
    from tenacity import RetryCallState
    from tenacity import Retrying

    from tasks.curate.endpoint import _after_s
    from tasks.curate.endpoint import _Busy
    from tasks.curate.endpoint import _wait

    state = RetryCallState(Retrying(), None, (), {})
    state.outcome = Future(1)
    state.outcome.set_exception(_Busy("busy", _after_s(httpx.Response(429, headers={"retry-after": told}))))
    assert _wait(state) == waited
    state.outcome = Future(1)
    state.outcome.set_exception(_Busy("busy", _after_s(httpx.Response(429, headers={"retry-after": "soon"}))))
    assert 0 <= _wait(state) <= 3
