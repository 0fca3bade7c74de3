"""O38: sub-agents that are asked the same at the same time and say the same are not one agent that was asked twice.

Found with the real Claude Code and Codex: of two agents with one prompt, one lost its first call as abandoned, and its
second call was put under the other's.
"""

import asyncio
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from tests.support.toy_model import make_toy_model
from training.rows import build_rows

AGENTS = ("a1", "b2")
# The same words, spelled in other tokens: whose call an agent goes on from can be seen from its prompt.
SPELLINGS = (["hello"], list("hello"))
ASK: list[dict[str, Any]] = [{"role": "user", "content": "count to two"}]


async def test_o38_agents_asked_the_same(tmp_path: Path) -> None:
    model = make_toy_model(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    spelled = [[i for part in parts for i in tokenizer.encode(part)] for parts in SPELLINGS]
    assert spelled[0] != spelled[1]

    def script(prompt: list[int], n: int) -> list[int]:
        return [*spelled[n % 2], *tokenizer.encode("<|im_end|>")]

    async with serving(ScriptedEngine(script)) as engine, recording(model, engine.url, tmp_path) as proxy:
        rollout = await proxy.register()

        async def ask(agent: str, *more: dict[str, Any]) -> None:
            body = {"model": "policy-v1", "max_tokens": 50, "messages": [*ASK, *more]}
            answer = await client.post("/v1/messages", json=body, headers={"x-claude-code-agent-id": agent})
            assert answer.json()["content"][0]["text"] == "hello", answer.text

        said = ({"role": "assistant", "content": "hello"}, {"role": "user", "content": "go on"})
        async with proxy.client(rollout) as client:
            for agent in AGENTS:
                await ask(agent)
            await asyncio.gather(ask(AGENTS[0], *said), ask(AGENTS[1], *said))
            await ask("fork", *said)
        summary, calls = await proxy.end(rollout)
    of = {agent: [call for call in calls if call["agent"] == agent] for agent in (*AGENTS, "fork")}
    assert {call["status"] for call in calls} == {"ok"} and summary["chains"] == 3
    for agent in AGENTS:
        first, second = of[agent]
        assert second["parent_call"] == first["call"] and second["chain"] == first["chain"]
    assert of["fork"][0]["parent_call"] is not None and of["fork"][0]["prompt_prefix_len"] > 0
    rows, report = build_rows(calls, max_row_tokens=1000)
    assert report.refused == {} and [row.calls for row in rows] == [
        tuple(call["call"] for call in calls) for calls in of.values()
    ]
