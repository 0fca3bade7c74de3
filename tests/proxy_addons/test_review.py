from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from proxy_addons.rendering import Rendering
from proxy_addons.rendering import load_rendering
from proxy_addons.review import review
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving

CALL = '<tool_call>\n{"name": "sh", "arguments": {"cmd": "hello"}}\n</tool_call><|im_end|>'


@pytest.fixture(scope="module")
def rendering(toy_model: Path) -> Rendering:
    return load_rendering(toy_model)


@pytest.fixture(scope="module")
def tokenizer(toy_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(toy_model))


def found(rendering: Rendering, ids: list[int], logprobs: list[float | None], kind: str = "processed") -> list[str]:
    return list(review({"sampled_ids": ids, "sampled_logprobs": logprobs, "logprob_kind": kind}, rendering))


def test_a_turn_with_control_tokens_encodes_to_itself(rendering: Rendering, tokenizer: Any) -> None:
    ids = tokenizer.encode(CALL, add_special_tokens=False)
    assert found(rendering, ids, [-0.5] * len(ids)) == []


@pytest.mark.parametrize("text", ["hello", "é"])
def test_a_text_sampled_in_other_pieces_is_noticed(rendering: Rendering, tokenizer: Any, text: str) -> None:
    """Letter by letter, and half of a character."""
    whole = tokenizer.encode("hello", add_special_tokens=False)
    pieces = [i for c in text for i in tokenizer.encode(c, add_special_tokens=False)]
    ids = pieces if text == "hello" else pieces[:1]
    assert ids != whole
    assert found(rendering, ids, [-0.5] * len(ids)) == ["retokenised"]


@pytest.mark.parametrize(
    ("logprobs", "kind", "codes"),
    [
        ([0.0, 0.0], "processed", ["certain_tokens"]),
        ([-0.0, 0.0], "raw", ["certain_tokens"]),
        ([0.0, -1e-6], "processed", []),
        ([None, None], "processed", []),
        ([0.0, 0.0], "scripted", []),
    ],
)
def test_an_engine_that_is_always_certain_is_noticed(
    rendering: Rendering, tokenizer: Any, logprobs: list[float | None], kind: str, codes: list[str]
) -> None:
    ids = tokenizer.encode("x<|im_end|>", add_special_tokens=False)
    assert found(rendering, ids, logprobs, kind) == codes


def test_a_call_without_tokens_has_nothing_to_review(rendering: Rendering) -> None:
    assert list(review({"status": "error"}, rendering)) == []


async def test_what_is_found_at_the_end_is_in_the_rows_and_counted(
    toy_model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    letters = [i for c in "hello" for i in tokenizer.encode(c, add_special_tokens=False)]
    async with (
        serving(ScriptedEngine(lambda prompt, n: letters)) as engine,
        recording(toy_model, engine.url, tmp_path) as proxy,
    ):
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            for text in ("a", "b"):
                body = {"model": "policy-v1", "messages": [{"role": "user", "content": text}]}
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        summary, rows = await proxy.end(rollout)
    assert [row["findings"] for row in rows] == [["retokenised"], ["retokenised"]]
    assert (summary["findings"], summary["finding_counts"]) == (["retokenised"], {"retokenised": 2})
