"""O30: the checksum that Claude Code puts first, another on every call, breaks no prefix; a quote of it stays."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from tests.support.toy_model import make_toy_model

HEADER = "x-anthropic-billing-header: cc_version=2; cch={};"
QUOTE = "What is this?\nx-anthropic-billing-header: cch=1a2b3;"


def as_blocks(checksum: str) -> list[dict[str, Any]]:
    mark = {"cache_control": {"type": "ephemeral"}}
    return [{"type": "text", "text": HEADER.format(checksum)}, {"type": "text", "text": "Be brief.", **mark}]


def as_string(checksum: str) -> str:
    return f"{HEADER.format(checksum)}\nBe brief."


@pytest.mark.parametrize("system", [as_blocks, as_string])
async def test_o30_turn_two_extends_turn_one(tmp_path: Path, system: Any) -> None:
    model = make_toy_model(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    sampled = tokenizer.encode("A header.<|im_end|>", add_special_tokens=False)
    engine = ScriptedEngine(lambda prompt, n: sampled)
    messages = [{"role": "user", "content": QUOTE}]
    async with serving(engine), recording(model, engine.url, tmp_path) as proxy:
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            for checksum in ("1a2b3", "9f8e7"):
                body = {"model": "m", "max_tokens": 9, "system": system(checksum), "messages": messages}
                answer = (await client.post("/v1/messages", json=body)).json()
                messages = [*messages, {"role": "assistant", "content": answer["content"]}]
                messages.append({"role": "user", "content": "And the rest?"})
        _, rows = await proxy.end(rollout)
    first, second = (str(tokenizer.decode(asked["token_ids"])) for asked in engine.asked)
    assert [row["parent_call"] for row in rows] == [None, 0]
    assert engine.asked[1]["token_ids"][: rows[1]["prompt_prefix_len"]] == engine.asked[0]["token_ids"] + sampled
    assert first.startswith("<|im_start|>system\nBe brief.<|im_end|>\n")
    assert second.count("x-anthropic-billing-header") == 1
    assert QUOTE in second
    assert rows[0]["request_sha"] != rows[1]["request_sha"]
