"""O26: a template that drops earlier reasoning breaks the prefix; the new row's prompt is what the model really saw."""

from pathlib import Path

from transformers import AutoTokenizer

from tests.support.calls import Recording
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from tests.support.toy_model import make_toy_model
from training.rows import build_rows

USER, THINK, ANSWER, TOOL, RESULT = 1, 2, 3, 4, 5


def test_o26_a_tool_loop_is_one_row_and_a_new_user_turn_opens_a_second() -> None:
    rec = Recording()
    rec.call(None, [USER], [THINK, TOOL])
    rec.call(0, [RESULT], [THINK, ANSWER])
    # The next prompt no longer shows any reasoning: only the first token is shared.
    rec.call(1, [TOOL, RESULT, ANSWER, USER], [THINK, ANSWER], keep=1, findings=["prefix_break"])
    (loop, after), report = build_rows(rec.calls, max_row_tokens=100)
    assert (loop.ids, loop.mask) == ([USER, THINK, TOOL, RESULT, THINK, ANSWER], [0, 1, 1, 0, 1, 1])
    assert after.ids == [USER, TOOL, RESULT, ANSWER, USER, THINK, ANSWER]
    assert after.mask == [0, 0, 0, 0, 0, 1, 1]
    assert (report.prefix_breaks, report.trained_tokens) == (1, 6)


SAID = (
    '<think>\nlook first\n</think>\n\n<tool_call>\n{"name": "sh", "arguments": {"cmd": "ls"}}\n</tool_call><|im_end|>',
    "<think>\none file\n</think>\n\nThere is one.<|im_end|>",
    "<think>\nthen two\n</think>\n\nThere are two.<|im_end|>",
)


async def test_o26_through_the_proxy_with_qwen3s_own_template(tmp_path: Path) -> None:
    model = make_toy_model(tmp_path / "model")
    (model / "renderer.json").unlink()  # with it, reasoning is kept
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    sampled = [tokenizer.encode(text, add_special_tokens=False) for text in SAID]
    engine = ScriptedEngine(lambda prompt, n: sampled[n])
    async with serving(engine), recording(model, engine.url, tmp_path) as proxy:
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            messages = [{"role": "user", "content": "how many?"}]
            for follow in ("a.txt", "and now?", ""):
                answer = await client.post("/v1/chat/completions", json={"messages": messages})
                reply = answer.json()["choices"][0]["message"]
                messages.append(reply)
                call = (reply.get("tool_calls") or [{}])[0].get("id")
                result = {"role": "tool", "tool_call_id": call} if call else {"role": "user"}
                messages.append({**result, "content": follow})
        _, calls = await proxy.end(rollout)
    asked = [body["token_ids"] for body in engine.asked]
    (loop, after), report = build_rows(calls, max_row_tokens=1000)
    assert loop.ids == asked[1] + sampled[1]
    assert loop.ids[: len(asked[0]) + len(sampled[0])] == asked[0] + sampled[0]
    assert after.ids == asked[2] + sampled[2]
    trained = [[t for t, m in zip(row.ids, row.mask, strict=True) if m] for row in (loop, after)]
    assert trained == [sampled[0] + sampled[1], sampled[2]]
    assert report.prefix_breaks == 1
    assert [call["findings"] for call in calls] == [[], [], ["prefix_break"]]
    # What the model really saw at the new user turn: the answers, without the reasoning that led to them.
    seen = str(tokenizer.decode(asked[2]))
    assert "There is one." in seen
    assert "one file" not in seen
    assert "look first" not in seen
