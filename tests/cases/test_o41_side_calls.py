"""O41: warm-ups, quota checks and titles between two turns leave the main chain whole; they are kept, marked, and by
default not trained."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import speakers
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from training.rows import build_rows

# Claude Code's own limit on a history is one token; where a dialect's harness sends another, the rule is the same.
SIDE_CALLS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("side_call:warmup", ["Warmup"], {"system": "You work."}),
    ("side_call:quota", ["quota"], {"max_tokens": 1}),
    ("side_call:no_tools", ["Write a title for: do it"], {"system": "You write titles.", "tools": ()}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", speakers.NAMES)
async def test_o41_between_two_turns(toy_model: Path, tokenizer: Any, tmp_path: Path, name: str, stream: bool) -> None:
    def say(prompt: list[int], number: int) -> list[int]:
        return tokenizer.encode(f"reply {number}<|im_end|>", add_special_tokens=False)

    main: dict[str, Any] = {"system": "You work.", "stream": stream}
    async with (
        serving(ScriptedEngine(say)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            # A title may also come first, before anyone knows what the main conversation is.
            await speakers.ask(client, name, ["Title?"], tools=())
            history: list[Any] = ["do it"]
            history += [await speakers.ask(client, name, history, **main), "go on"]
            for _, messages, how in SIDE_CALLS:
                await speakers.ask(client, name, messages, **how)
            # The main conversation's very own next turn, asked for one token only.
            await speakers.ask(client, name, history, **main, max_tokens=1)
            await speakers.ask(client, name, history, **main)
        _, calls = await proxy.end(rollout)
    aside = [finding for finding, _, _ in SIDE_CALLS]
    assert [call["findings"] for call in calls] == [
        ["side_call:no_tools"],
        [],
        *([finding] for finding in aside),
        ["side_call:quota"],
        [],
    ]
    assert [call["status"] for call in calls] == ["ok"] * 7
    assert calls[6]["parent_call"] == 1
    assert calls[6]["chain"] == calls[1]["chain"]
    assert len({call["chain"] for call in calls}) == 6
    rows, report = build_rows(calls, max_row_tokens=10_000)
    assert [row.calls for row in rows] == [(1, 6)]
    assert report.refused == {"side_call:no_tools": 2, "side_call:warmup": 1, "side_call:quota": 2}
    # The rule is the trainer's setting.
    assert len(build_rows(calls, max_row_tokens=10_000, leave_out=())[0]) == 6


async def test_o41_a_harness_without_tools_has_no_side_calls(toy_model: Path, tokenizer: Any, tmp_path: Path) -> None:
    async with (
        serving(ScriptedEngine(lambda prompt, n: tokenizer.encode("Hi.<|im_end|>"))) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            for system in ("You plan.", "You work."):
                await speakers.ask(client, "openai_chat", ["do it"], system=system, tools=())
        _, calls = await proxy.end(rollout)
    assert [call["findings"] for call in calls] == [[], []]


async def test_o41_agents_without_tools_are_no_side_calls(toy_model: Path, tokenizer: Any, tmp_path: Path) -> None:
    """A declared sub-agent, a request for a compaction, and a turn for which the harness withholds the tools."""
    async with (
        serving(ScriptedEngine(lambda prompt, n: tokenizer.encode("Hi.<|im_end|>"))) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        path, name = "/v1/responses", "openai_responses"
        bare = speakers.body(name, ["do it"], tools=())
        async with proxy.client(rollout) as client:
            await client.post(path, json=speakers.body(name, ["do it"]))
            await client.post(path, json=bare, headers={"session-id": "s", "thread-id": "t"})
            await client.post(path, json=bare, headers={"x-codex-turn-metadata": '{"request_kind": "compaction"}'})
            await client.post(path, json=speakers.body(name, ["do it"]) | {"tool_choice": "none"})
            await client.post(path, json=bare)
        _, calls = await proxy.end(rollout)
    assert [call["findings"] for call in calls] == [
        [],
        [],
        ["compaction_request"],
        ["tools_withheld"],
        ["side_call:no_tools"],
    ]
