"""O42: a history that was cut is rendered the same way every time and is marked; what came before stays in its row."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import speakers
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from training.rows import build_rows

CALL = '<tool_call>\n{"name": "sh", "arguments": {"cmd": "ls"}}\n</tool_call><|im_end|>'
GONE = speakers.Call("call_gone", "sh", {"cmd": "ls"})


@pytest.mark.parametrize("name", speakers.NAMES)
async def test_o42_orphans_on_either_side(toy_model: Path, tokenizer: Any, tmp_path: Path, name: str) -> None:
    turns = [CALL, "Done.<|im_end|>", *["After.<|im_end|>"] * 4]
    async with (
        serving(ScriptedEngine(lambda prompt, n: tokenizer.encode(turns[n], add_special_tokens=False))) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            history: list[Any] = ["do it"]
            asked = await speakers.ask(client, name, history)
            result = speakers.Result(speakers.calls(name, asked)[0], "a.txt")
            done = await speakers.ask(client, name, [*history, asked, result])
            # The call of this result is gone; then a call that has no result.
            cuts: list[list[Any]] = [
                ["So far: a listing.", speakers.Result(GONE, "a.txt"), done, "go on"],
                ["So far.", asked, "go on"],
            ]
            for cut in cuts:
                for _ in range(2):
                    await speakers.ask(client, name, cut)
        _, calls = await proxy.end(rollout)
    asked_ids = [each["token_ids"] for each in engine.asked]
    assert asked_ids[2] == asked_ids[3] != asked_ids[4] == asked_ids[5]
    assert [call["findings"] for call in calls] == [[], []] + [["compaction"]] * 2 + [["tool_call_unanswered"]] * 2
    rows, _ = build_rows(calls, max_row_tokens=10_000)
    # Asked twice, the last one counts; the turns before the cut are a row of their own.
    assert [row.calls for row in rows] == [(0, 1), (3,), (5,)]


async def test_o42_claude_code_says_when_it_compacts(toy_model: Path, tokenizer: Any, tmp_path: Path) -> None:
    name = "anthropic_messages"
    request = "CRITICAL: Respond with TEXT ONLY. (and what else it says)"
    summary = "This session is being continued from a previous conversation that was long.\nWe listed."
    async with (
        serving(ScriptedEngine(lambda prompt, n: tokenizer.encode(f"turn {n}<|im_end|>"))) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            history: list[Any] = ["do it"]
            history.append(await speakers.ask(client, name, history))
            await speakers.ask(client, name, [*history, request])
            after: list[Any] = [f"<system-reminder>the day is long</system-reminder>\n{summary}"]
            after += [await speakers.ask(client, name, after), "go on"]
            await speakers.ask(client, name, after)
        _, calls = await proxy.end(rollout)
    assert [call["findings"] for call in calls] == [[], ["compaction_request"], ["compaction"], ["compaction"]]
    assert [call["chain"] for call in calls] == ["c0", "c0", "c1", "c1"]
    rows, _ = build_rows(calls, max_row_tokens=10_000)
    assert [row.calls for row in rows] == [(0, 1), (2, 3)]
    assert [row.calls for row in build_rows(calls, max_row_tokens=10_000, leave_out=["compaction_request"])[0]] == [
        (0,),
        (2, 3),
    ]


async def test_o42_codex_says_when_it_compacts(toy_model: Path, tokenizer: Any, tmp_path: Path) -> None:
    name, path = "openai_responses", "/v1/responses"
    async with (
        serving(ScriptedEngine(lambda prompt, n: tokenizer.encode(f"turn {n}<|im_end|>"))) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            for tools, window, kind, text in (
                (("sh",), 0, "turn", "do it"),
                ((), 0, "compaction", "do it. And now sum it up."),
                (("sh",), 1, "turn", "a summary"),
            ):
                headers = {
                    "x-codex-window-id": f"0199-thread:{window}",
                    "x-codex-turn-metadata": f'{{"turn_id": "t", "request_kind": "{kind}"}}',
                }
                await client.post(path, json=speakers.body(name, [text], tools=tools), headers=headers)
            for broken in ({"x-codex-turn-metadata": "{"}, {"x-codex-window-id": "thread"}):
                await client.post(path, json=speakers.body(name, ["x"]), headers=broken)
        _, calls = await proxy.end(rollout)
    assert [call["findings"] for call in calls] == [[], ["compaction_request"], ["compaction"], [], []]
    assert [row.calls for row in build_rows(calls[:3], max_row_tokens=10_000)[0]] == [(0,), (1,), (2,)]
