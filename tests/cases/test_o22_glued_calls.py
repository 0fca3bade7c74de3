"""O22, where it can occur here: our engine has no deltas, but a policy can sample calls that run into each other.

What cannot be read as one call each is never glued into one: it stays visible as text, and is flagged. Calls that can
be read have ids of their own, though the policy says the same thing twice.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.support import speakers
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving

ONE = '{"name": "sh", "arguments": {"cmd": "ls"}}'
NAMELESS = '{"name": null, "arguments": {"cmd": "ls"}}'
NO_NAME = '{"arguments": {"cmd": "ls"}}'
GLUED_ARGUMENTS = '{"name": "sh", "arguments": {"cmd": "ls"}{"cmd": "pwd"}}'


# Case → what the policy puts in calls, how many of them can be read, and the one that cannot.
SAMPLED: dict[str, tuple[list[str], int, str]] = {
    "the same call twice": ([ONE, ONE], 2, ""),
    "two calls in one block": ([ONE + ONE], 0, ONE + ONE),
    "glued arguments": ([GLUED_ARGUMENTS], 0, GLUED_ARGUMENTS),
    "a third one without a name": ([ONE, ONE, NAMELESS], 2, NAMELESS),
    "a name that is missing": ([NO_NAME, ONE], 1, NO_NAME),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", speakers.NAMES)
async def test_o22_never_glued(toy_model: Path, tokenizer: Any, tmp_path: Path, name: str, stream: bool) -> None:
    turns = ["\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in inner) for inner, _, _ in SAMPLED.values()]

    def say(prompt: list[int], number: int) -> list[int]:
        text = "Done." if number % 2 else turns[number // 2]
        return tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)

    async with (
        serving(ScriptedEngine(say)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            for case, (_, number, unreadable) in SAMPLED.items():
                history: list[Any] = [case]
                answer = await speakers.ask(client, name, history, stream=stream)
                made = speakers.calls(name, answer)
                assert [(call.name, call.arguments) for call in made] == [("sh", {"cmd": "ls"})] * number, case
                assert len({call.id for call in made}) == number, case
                assert unreadable in speakers.text(name, answer), case
                # Sent back as it came it is the turn that was sampled, whatever it was.
                results = [speakers.Result(call, f"result {i}") for i, call in enumerate(made)]
                await speakers.ask(client, name, [*history, answer, *results, *(() if results else ("go on",))])
        _, rows = await proxy.end(rollout)
    for n, (_, _, unreadable) in enumerate(SAMPLED.values()):
        sampled, next_turn = rows[2 * n], rows[2 * n + 1]
        assert sampled["findings"] == (["tool_call_unreadable"] if unreadable else [])
        assert next_turn["parent_call"] == sampled["call"]
        assert next_turn["chain"] == sampled["chain"]
