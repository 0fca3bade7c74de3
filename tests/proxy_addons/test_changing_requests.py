"""What harnesses change between two turns of one conversation, and whether it is the same chain then."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from tests.support.recording import Recording
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from training.rows import build_rows

SEARCH, MAIL = ({"name": name, "input_schema": {"type": "object"}} for name in ("ToolSearch", "SendMail"))
CALL = '<tool_call>\n{"name": "ToolSearch", "arguments": {"query": "mail"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(toy_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(toy_model))


def says(tokenizer: Any, *texts: str) -> ScriptedEngine:
    return ScriptedEngine(lambda prompt, n: tokenizer.encode(texts[n] + "<|im_end|>", add_special_tokens=False))


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json={"model": "policy-v1", "max_tokens": 500, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def trained_once(proxy: Recording, rollout: str) -> tuple[list[dict[str, Any]], list[tuple[int, ...]]]:
    _, calls = await proxy.end(rollout)
    rows, report = build_rows(calls, max_row_tokens=10_000)
    assert report.trained_tokens == sum(len(call["sampled_ids"]) for call in calls)
    return calls, [row.calls for row in rows]


async def test_a_tool_that_comes_later_opens_a_chain_and_the_next_turn_goes_on(
    toy_model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    """Claude Code's ToolSearch. Templates show the tools first of all, so the prompt is another one from there on."""
    async with (
        serving(says(tokenizer, CALL, "found", "done")) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            path = "/v1/messages?beta=true"
            messages: list[Any] = [{"role": "user", "content": "find a mail tool"}]
            first = await post(client, path, {"messages": messages, "tools": [SEARCH]})
            reference = {"type": "tool_reference", "tool_name": "SendMail"}
            result = {"type": "tool_result", "tool_use_id": first["content"][0]["id"], "content": [reference]}
            tools = [SEARCH, {**MAIL, "defer_loading": True}]
            messages += [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
            second = await post(client, path, {"messages": messages, "tools": tools})
            messages += [{"role": "assistant", "content": second["content"]}, {"role": "user", "content": "go on"}]
            await post(client, path, {"messages": messages, "tools": tools})
        calls, rows = await trained_once(proxy, rollout)
    assert [call["chain"] for call in calls] == ["c0", "c1", "c1"]
    assert rows == [(0,), (1, 2)]
    prompts = [tokenizer.decode(asked["token_ids"]) for asked in engine.asked]
    assert ["SendMail" in prompt for prompt in prompts] == [False, True, True]
    assert "[tool available: SendMail]" in prompts[1]


async def test_additional_tools_in_the_middle_of_the_input(toy_model: Path, tokenizer: Any, tmp_path: Path) -> None:
    """Codex sends its tools as an item of the input: as long as no new ones come, where they stand does not matter."""
    shown = {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "exec"}]}
    later = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "mail"}]}
    async with (
        serving(says(tokenizer, "one", "two", "three", "four")) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            items: list[Any] = [shown, {"role": "user", "content": "go"}]
            for turn in range(4):
                reply = await post(client, "/v1/responses", {"input": items, "tools": []})
                items += [*reply["output"], *([later] if turn == 1 else []), {"role": "user", "content": "go on"}]
        calls, rows = await trained_once(proxy, rollout)
    assert [call["chain"] for call in calls] == ["c0", "c0", "c1", "c1"]
    assert rows == [(0, 1), (2, 3)]


async def test_a_cache_mark_that_moves_is_the_same_conversation(
    toy_model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    """The newest turn carries the mark and is a list of blocks; once it is old it is a plain string."""
    mark = {"cache_control": {"type": "ephemeral"}}
    async with (
        serving(says(tokenizer, "one", "two", "three")) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            messages: list[dict[str, Any]] = []
            for turn in range(3):
                marked = {"role": "user", "content": [{"type": "text", "text": f"turn {turn}", **mark}]}
                system = [{"type": "text", "text": "You work.", **(mark if turn % 2 else {})}]
                body = {"system": system, "messages": [*messages, marked], "tools": [{**SEARCH, **mark}]}
                reply = await post(client, "/v1/messages?beta=true", body)
                messages.append({"role": "user", "content": f"turn {turn}"})
                messages.append({"role": "assistant", "content": reply["content"]})
        _, rows = await trained_once(proxy, rollout)
    assert rows == [(0, 1, 2)]


CHOICES = [
    ("/v1/messages", {"tools": [SEARCH], "tool_choice": {"type": "none"}}, {"type": "any"}),
    (
        "/v1/chat/completions",
        {"tools": [{"type": "function", "function": {"name": "ToolSearch"}}], "tool_choice": "none"},
        "required",
    ),
    ("/v1/responses", {"tools": [{"type": "function", "name": "ToolSearch"}], "tool_choice": "none"}, "required"),
]


@pytest.mark.parametrize(("path", "more", "force"), CHOICES)
async def test_tool_choice(
    toy_model: Path, tokenizer: Any, tmp_path: Path, path: str, more: dict[str, Any], force: Any
) -> None:
    """ "none" withholds the tools; "auto" and absent are alike; to force a call is not heeded, and is noted."""
    turn = {"input": "go"} if path.endswith("responses") else {"messages": [{"role": "user", "content": "go"}]}
    auto = {"type": "auto"} if isinstance(force, dict) else "auto"
    async with (
        serving(says(tokenizer, *["ok"] * 4)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            await post(client, path, turn | more)
            for choice in (auto, None, force):
                await post(client, path, turn | more | {"tool_choice": choice})
        _, calls = await proxy.end(rollout)
    assert [call["findings"] for call in calls] == [["tools_withheld"], [], [], ["tool_choice_ignored"]]
    offered = ["ToolSearch" in tokenizer.decode(asked["token_ids"]) for asked in engine.asked]
    assert offered == [False, True, True, True]
