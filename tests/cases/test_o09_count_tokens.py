"""O09: a counting call says exactly how many tokens the engine gets for the same body, and is no turn."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import speakers
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving

# Chat Completions has no counting call.
COUNTS = {
    "anthropic_messages": ("/v1/messages/count_tokens?beta=true", "input_tokens"),
    "openai_responses": ("/v1/responses/input_tokens", "input_tokens"),
    "gemini": ("/v1beta/models/policy-v1:countTokens", "totalTokens"),
}
CALL = (
    '<think>\nlet me look\n</think>\n\n<tool_call>\n{"name": "sh", "arguments": {"cmd": "ls"}}\n</tool_call><|im_end|>'
)


@pytest.mark.parametrize("name", COUNTS)
async def test_o09_count_is_the_prompts_length(toy_model: Path, tokenizer: Any, tmp_path: Path, name: str) -> None:
    def say(prompt: list[int], number: int) -> list[int]:
        return tokenizer.encode(CALL, add_special_tokens=False)

    path, field = COUNTS[name]
    history: list[Any] = ["look around"]
    counts = []
    async with (
        serving(ScriptedEngine(say)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register(max_model_len=20_000)
        async with proxy.client(rollout) as client:
            for _ in range(3):
                how: dict[str, Any] = {"system": "You work.", "tools": ("sh", "read")}
                counted = await client.post(path, json=speakers.body(name, history, **how))
                assert counted.status_code == 200, counted.text
                counts.append(counted.json()[field])
                answer = await speakers.ask(client, name, history, **how)
                history += [answer, *(speakers.Result(c, "a" * 4000) for c in speakers.calls(name, answer))]
        summary, rows = await proxy.end(rollout)
    assert counts == [len(asked["token_ids"]) for asked in engine.asked]
    assert counts[1] - counts[0] > 1000, "the tool result and the call are counted"
    assert summary["calls"] == len(rows) == 3


@pytest.mark.parametrize("part", ["system", "tools", "tool_use", "tool_result", "thinking"])
async def test_o09_every_part_is_counted(toy_model: Path, tmp_path: Path, part: str) -> None:
    thinking = {"type": "thinking", "thinking": "hm " * 50, "signature": "x"}
    use = {"type": "tool_use", "id": "t1", "name": "sh", "input": {"cmd": "ls " * 50}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "a.txt " * 700}
    whole: dict[str, Any] = {
        "system": "You work.",
        "tools": [{"name": "sh", "input_schema": speakers.SCHEMA}, {"name": "read", "input_schema": speakers.SCHEMA}],
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [thinking, use]},
            {"role": "user", "content": [result]},
        ],
    }
    less = whole | {part: ""} if part == "system" else whole | {part: []}
    if part not in ("system", "tools"):
        messages = [
            {**m, "content": [b for b in m["content"] if b["type"] != part]} if isinstance(m["content"], list) else m
            for m in whole["messages"]
        ]
        less = whole | {"messages": messages}
    async with (
        serving(ScriptedEngine(lambda prompt, n: [9])) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            counts = [
                (await client.post("/v1/messages/count_tokens?beta=true", json=body)).json()["input_tokens"]
                for body in (whole, less)
            ]
        summary, _ = await proxy.end(rollout)
    assert counts[0] > counts[1]
    assert (summary["calls"], engine.asked) == (0, [])
