"""Where a request stands in the tree of a rollout's calls, through the whole proxy."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from transformers import AutoTokenizer

from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from training.rows import build_rows

GO = {"role": "user", "content": "go"}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


async def record(
    model: Path, folder: Path, sampled: list[list[int]], *conversations: list[Any], finish: str = "stop"
) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """The prompts that the engine was asked with and the recorded calls."""

    def script(prompt: list[int], n: int) -> web.Response:
        content = [{"token_id": t, "logprob": -0.25} for t in sampled[n]]
        choice = {
            "token_ids": sampled[n],
            "logprobs": {"content": content},
            "finish_reason": finish if n == 0 else "stop",
        }
        return web.json_response({"choices": [choice], "usage": {"completion_tokens": len(sampled[n])}})

    engine = ScriptedEngine(script)
    async with serving(engine), recording(model, engine.url, folder) as proxy:
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            for messages in conversations:
                answer = await client.post("/v1/chat/completions", json={"messages": messages})
                assert answer.status_code == 200, answer.text
        _, rows = await proxy.end(rollout)
    return [body["token_ids"] for body in engine.asked], rows


@pytest.fixture(scope="module")
def tokenizer(toy_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(toy_model))


def encode(tokenizer: Any, *texts: str) -> list[list[int]]:
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


async def test_o25_the_next_prompt_goes_on_from_the_sampled_ids(
    toy_model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    """`hello` sampled letter by letter is not what an encoder makes of it."""
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "hello"]
    assert tokenizer.encode("hello") != letters
    sampled = [[*letters, end], [*letters, end]]
    asked, rows = await record(toy_model, tmp_path, sampled, [GO], [GO, assistant("hello"), user("on")])
    assert asked[1][: len(asked[0]) + 6] == asked[0] + sampled[0]
    (row,), _ = build_rows(rows, max_row_tokens=1000)
    assert [t for t, m in zip(row.ids, row.mask, strict=True) if m] == sampled[0] + sampled[1]


@pytest.mark.parametrize("cut", [True, False])
async def test_a_turn_is_closed_once_whether_the_policy_closed_it_or_not(
    toy_model: Path, tokenizer: Any, tmp_path: Path, cut: bool
) -> None:
    """A reply that ran out of tokens has no end-of-turn token: the next prompt closes it, and that token is not the
    policy's to be trained on."""
    end, start = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>"])
    sampled = encode(tokenizer, "half a" if cut else "half a<|im_end|>", "rest<|im_end|>")
    history = [GO, assistant("half a"), user("on")]
    asked, rows = await record(toy_model, tmp_path, sampled, [GO], history, finish="length" if cut else "stop")
    said = asked[0] + sampled[0]
    assert asked[1][: len(said)] == said
    tail = asked[1][len(asked[0]) :]
    assert tail[: tail.index(start)] == encode(tokenizer, "half a<|im_end|>\n")[0]
    assert asked[1].count(end) == asked[1].count(start) - 1
    assert rows[0]["finish"] == ("length" if cut else "stop")
    (row,), _ = build_rows(rows, max_row_tokens=1000)
    assert [t for t, m in zip(row.ids, row.mask, strict=True) if m] == sampled[0] + sampled[1]


async def test_an_edited_last_answer_branches_and_is_never_trained(
    toy_model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    """The harness rewrites what the policy said last: the branch leaves at the last turn that is still as recorded."""
    sampled = encode(tokenizer, "one<|im_end|>", "two<|im_end|>", "three<|im_end|>")
    start = [GO, assistant("one"), user("on")]
    asked, rows = await record(
        toy_model, tmp_path, sampled, [GO], start, [*start, assistant("two, edited"), user("and?")]
    )
    assert [row["parent_call"] for row in rows] == [None, 0, 0]
    assert [row["status"] for row in rows] == ["ok"] * 3
    kept, branch = build_rows(rows, max_row_tokens=1000)[0]
    assert kept.ids == asked[1] + sampled[1]
    assert branch.ids == asked[2] + sampled[2]
    trained = [[t for t, m in zip(row.ids, row.mask, strict=True) if m] for row in (kept, branch)]
    assert trained == [sampled[0] + sampled[1], sampled[2]]
    assert "two, edited" in tokenizer.decode(asked[2])
