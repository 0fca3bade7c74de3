"""O40 through the proxy: who a rollout is comes from our URL and key; a harness's own ids are extra data at most."""

import json
from pathlib import Path
from typing import Any

from tests.support import speakers
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving

FORMS: list[tuple[str, dict[str, Any], dict[str, str], str | None]] = [
    ("anthropic_messages", {}, {}, None),
    ("anthropic_messages", {"metadata": {"user_id": "user_abc_account__session_0f3a"}}, {}, None),
    ("anthropic_messages", {"metadata": {"user_id": '{"device_id": "d", "session_id": "0f3a"}'}}, {}, None),
    ("anthropic_messages", {"metadata": {"user_id": '{"device_id": '}}, {}, None),
    ("anthropic_messages", {}, {"X-Claude-Code-Session-Id": "0f3a"}, None),
    ("anthropic_messages", {}, {"X-Claude-Code-Session-Id": "0f3a", "X-Claude-Code-Agent-Id": "a1"}, "a1"),
    ("openai_responses", {}, {"session-id": "s", "thread-id": "s"}, None),
    ("openai_responses", {"prompt_cache_key": "s"}, {"session-id": "s", "thread-id": "t"}, "t"),
    ("openai_chat", {"user": "u", "metadata": "broken"}, {"session-id": "s"}, None),
    ("gemini", {"session_id": 7}, {"x-session": "0f3a"}, None),
]


async def test_o40_every_form_is_the_same_rollout(toy_model: Path, tokenizer: Any, tmp_path: Path) -> None:
    def say(prompt: list[int], number: int) -> list[int]:
        return tokenizer.encode("Hi.<|im_end|>", add_special_tokens=False)

    async with (
        serving(ScriptedEngine(say)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        other = await proxy.register("elsewhere")
        async with proxy.client(rollout) as client:
            for name, more, headers, _ in FORMS:
                body = speakers.body(name, ["hi"]) | more
                # A harness may claim to be who it likes: also another rollout.
                claim = {**headers, "x-openforge-rollout": other}
                answer = await client.post(speakers.path(name), json=body, headers=claim)
                assert answer.status_code == 200, answer.text
        summary, rows = await proxy.end(rollout)
        empty, _ = await proxy.end(other)
    assert empty["calls"] == 0
    assert summary["calls"] == len(FORMS)
    assert {row["rollout"] for row in rows} == {rollout}
    assert [row["agent"] for row in rows] == [agent for *_, agent in FORMS]
    assert "0f3a" not in json.dumps([row["messages_delta"] for row in rows])
