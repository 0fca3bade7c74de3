"""A model behind an API: both dialects, retries, costs, and no key in any error."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from tasks.provider import Answer
from tasks.provider import Client
from tasks.provider import OverBudget
from tasks.provider import Provider
from tests.support.provider import provider

KEY = "key-that-nobody-may-see"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", KEY)


def client(url: str, **fields: Any) -> Client:
    return Client(Provider.model_validate({"base_url": url, "model": "m", "key_env": "THE_KEY"} | fields))


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_a_question_is_asked_in_the_dialect_and_counted(api: str) -> None:
    async with provider(lambda system, user: f"{system}, {user}") as fake:
        asking = client(fake.url, api=api, prompt_usd=2.0, sampled_usd=100.0)
        turns = [Message("system", "be brief"), Message("user", "hello")]
        said = Answer(Message("assistant", "be brief, hello"), False, 1000, 10)
        assert await asking.chat(turns, temperature=0.5) == said
        assert (fake.keys, fake.asked[0]["temperature"], fake.asked[0]["max_tokens"]) == ([KEY], 0.5, 2048)
        assert asking.spent_usd == pytest.approx(0.003)
        await asking.ask("be brief", "hello")
        assert "temperature" not in fake.asked[1]


CONVERSATION = [
    Message("system", "be brief"),
    Message("user", "look"),
    Message("assistant", "Two.", tool_calls=(ToolCall("a", "sh", '{"c": "ls"}'), ToolCall("b", "sh", '{"c": "pwd"}'))),
    Message("tool", "x.txt", tool_call_id="a"),
    Message("tool", "/w", tool_call_id="b"),
]
TOOL = Tool("sh", "a shell", {"type": "object"})


async def test_calls_and_their_results_are_spelled_in_openais_form() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "sh", "arguments": "{}"}}
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    choice = {"message": {"content": None, "tool_calls": [call]}, "finish_reason": "length"}
    async with provider(lambda _, __: {"choices": [choice], "usage": usage}) as fake:
        answer = await client(fake.url).chat(CONVERSATION, [TOOL])
        assert answer == Answer(Message("assistant", "", tool_calls=(ToolCall("c", "sh", "{}"),)), True, 1, 2)
        *_, said, first, second = fake.asked[0]["messages"]
        assert [c["function"]["arguments"] for c in said["tool_calls"]] == ['{"c": "ls"}', '{"c": "pwd"}']
        assert [(t["role"], t["tool_call_id"], t["content"]) for t in (first, second)] == [
            ("tool", "a", "x.txt"),
            ("tool", "b", "/w"),
        ]
        assert fake.asked[0]["tools"][0]["function"]["name"] == "sh"


async def test_calls_and_their_results_are_spelled_in_anthropics_form() -> None:
    content = [{"type": "text", "text": "So."}, {"type": "tool_use", "id": "c", "name": "sh", "input": {"c": "é"}}]
    usage = {"input_tokens": 1, "output_tokens": 2}
    async with provider(lambda _, __: {"content": content, "usage": usage, "stop_reason": "tool_use"}) as fake:
        answer = await client(fake.url, api="anthropic").chat(CONVERSATION, [TOOL])
        call = ToolCall("c", "sh", '{"c": "é"}')
        assert answer == Answer(Message("assistant", "So.", tool_calls=(call,)), False, 1, 2)
        asked = fake.asked[0]
        assert asked["system"] == "be brief"
        assert [turn["role"] for turn in asked["messages"]] == ["user", "assistant", "user"]
        assert asked["messages"][1]["content"][1] == {"type": "tool_use", "id": "a", "name": "sh", "input": {"c": "ls"}}
        assert [block["tool_use_id"] for block in asked["messages"][2]["content"]] == ["a", "b"]
        assert asked["tools"] == [{"name": "sh", "description": "a shell", "input_schema": {"type": "object"}}]


async def test_what_may_pass_is_asked_again() -> None:
    said: Iterator[int | str] = itertools.chain([429, 503, 529], itertools.repeat("at last"))
    async with provider(lambda _, __: next(said)) as fake:
        assert await client(fake.url).ask("s", "u") == "at last"
        assert len(fake.asked) == 4


@pytest.mark.parametrize(("status", "tries"), [(401, 1), (400, 1), (503, 5)])
async def test_a_refusal_is_told_without_the_key(status: int, tries: int) -> None:
    async with provider(lambda _, __: status) as fake:
        with pytest.raises(InfrastructureError, match=f"m: status {status}: no, …") as found:
            await client(fake.url).ask("s", "u")
        assert len(fake.asked) == tries
        assert KEY not in repr(found.value)


async def test_an_answer_of_another_form_and_one_that_is_not_there() -> None:
    async with provider(lambda _, __: {"choices": []}) as fake:
        with pytest.raises(InfrastructureError, match="another form"):
            await client(fake.url).ask("s", "u")
    with pytest.raises(InfrastructureError, match="ConnectError"):
        await client(fake.url, timeout_s=1.0).ask("s", "u")


async def test_nothing_is_asked_beyond_the_limit() -> None:
    async with provider(lambda _, __: "yes") as fake:
        asking = client(fake.url, prompt_usd=1000.0, max_usd=1.5)
        for _ in range(2):
            await asking.ask("s", "u")
        with pytest.raises(OverBudget, match=r"the limit of 1\.5 USD is spent"):
            await asking.ask("s", "u")
        assert len(fake.asked) == 2


async def test_tokens_that_are_not_told_are_unknown_and_no_limit_can_be_kept_with_them() -> None:
    async with provider(lambda _, __: {"choices": [{"message": {"content": "yes"}}]}) as fake:
        asking = client(fake.url, prompt_usd=1.0)
        answer = await asking.chat([Message("user", "u")])
        assert (answer.prompt_tokens, asking.cost(answer), asking.spent_usd) == (None, None, 0.0)
        with pytest.raises(InfrastructureError, match="it tells no tokens"):
            await client(fake.url, prompt_usd=1.0, max_usd=1.0).ask("s", "u")


def test_a_key_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THE_KEY")
    with pytest.raises(ConfigError, match="the environment variable THE_KEY is not set"):
        client("http://h/v1")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"base_url": "host/v1"}, "write it as"),
        ({"base_url": "https://me:secret@host/v1"}, "without a key in it"),
        ({"max_usd": 1.0}, "needs prompt_usd"),
        ({"key_env": "sk-secret"}, "not the key itself"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_not_repeated(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason) as found:
        Provider.model_validate({"base_url": "https://host/v1", "model": "m"} | fields)
    assert "secret" not in str(found.value)
