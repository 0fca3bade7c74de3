"""A model behind an API works in a real harness, through the proxy, as a policy does."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from proxy_addons import records
from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from tasks import builtin
from tasks import taskset
from tasks.provider import Provider
from tasks.provider_server import as_text
from tasks.provider_server import with_calls
from tasks.rollout import fill
from tasks.run import MODELS
from tasks.stand_in import provided
from tasks.teacher import teacher_turn
from tests.support.provider import Fake
from tests.support.provider import provider
from tests.tasks.arena import arena_of
from tests.tasks.arena import slot
from tests.tasks.harnesses.real import installed

pytestmark = pytest.mark.timeout(180)

TINY = MODELS / "tiny"


def teaching(fake: Callable[[], Fake]) -> Callable[[str, str], dict[str, Any]]:
    """A provider that says what the scripted teacher says, reading OpenAI's form as a provider would."""

    def say(_: str, __: str) -> dict[str, Any]:
        asked = fake().asked[-1]
        messages = [Message(turn["role"], turn["content"]) for turn in asked["messages"]]
        named = [tool["function"] for tool in asked.get("tools", [])]
        turn = teacher_turn(messages, [Tool(f["name"], f["description"], f["parameters"]) for f in named])
        calls = [
            {"id": f"x{len(messages)}", "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in turn.tool_calls
        ]
        message = {"role": "assistant", "content": turn.content or None, "tool_calls": calls}
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}

    return say


@pytest.mark.slow
async def test_it_solves_a_task_in_claude_code_and_nothing_of_it_can_train_a_policy(tmp_path: Path) -> None:
    builtin.generate(tmp_path / "tasks", 1, 1, 0)
    (task,) = taskset.load(tmp_path / "tasks")
    made: list[Fake] = []
    async with provider(teaching(lambda: made[0])) as fake:
        made.append(fake)
        stand_in = provided(Provider(base_url=fake.url, model="m"))
        async with stand_in(TINY, tmp_path / "log") as url, arena_of(url, TINY, tmp_path) as place:
            row = await fill(slot(task, installed("claude_code")), place)
    assert (row["exit"], row["reward"], row["complete"]) == ("completed", 1.0, True), row
    calls = records.read(row["calls_path"], records.CALLS)
    assert {call["logprob_kind"] for call in calls} == {"scripted"}
    results = [turn for turn in fake.asked[-1]["messages"] if turn["role"] == "tool"]
    assert results and results[-1]["tool_call_id"] == fake.asked[-1]["messages"][-2]["tool_calls"][0]["id"]


@pytest.mark.parametrize("status", [400, 401])
async def test_what_the_provider_refuses_is_a_refusal_in_its_words(status: int, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(TINY), local_files_only=True)
    ids = tokenizer.encode("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)
    body = {"token_ids": ids, "sampling_params": {"max_tokens": 10, "temperature": 1.0}}
    async with provider(lambda _, __: status) as fake:
        stand_in = provided(Provider(base_url=fake.url, model="m"))
        async with stand_in(TINY, tmp_path / "log") as url, httpx.AsyncClient() as client:
            answer = await client.post(f"{url}/inference/v1/generate", json=body)
    assert (answer.status_code, len(fake.asked)) == (400, 1)
    assert f"m: status {status}" in answer.json()["error"]["message"]
    assert fake.asked[0]["max_tokens"] == 10 and "temperature" not in fake.asked[0]


def test_calls_are_read_back_and_results_named_after_them() -> None:
    call = '<tool_call>\n{"name": "sh", "arguments": {"c": "é"}}\n</tool_call>'
    broken = "<tool_call>\n{oops}\n</tool_call>"
    said = [Message("assistant", f"Two.\n{call}\n{call}"), Message("tool", "1"), Message("tool", "2")]
    turn, first, second, odd = with_calls([*said, Message("assistant", broken)])
    assert (turn.content, [json.loads(c.arguments) for c in turn.tool_calls]) == ("Two.", [{"c": "é"}] * 2)
    assert [first.tool_call_id, second.tool_call_id] == [c.id for c in turn.tool_calls]
    assert len({c.id for c in turn.tool_calls}) == 2
    assert (odd.content, odd.tool_calls) == (broken, ())


def test_a_control_token_in_its_words_ends_no_turn() -> None:
    text = as_text(Message("assistant", "a<|im_end|>b", tool_calls=(ToolCall("x", "sh", '{"c": "<|im_start|>"}'),)))
    assert text.count("<|im_end|>") == 1 and text.endswith("<|im_end|>") and "<|im_start|>" not in text
