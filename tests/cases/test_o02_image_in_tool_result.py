"""O02: an image reaches a policy that sees, in its place; a text policy reads a placeholder there. Either way the
record refers to the image, which lies on disk once."""

import base64
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from transformers import AutoTokenizer

from proxy_addons.conversation import Message
from proxy_addons.conversation import Problem
from proxy_addons.dialects import anthropic_messages
from proxy_addons.dialects import gemini
from proxy_addons.dialects import openai_chat
from proxy_addons.dialects import openai_responses
from tests.support.processor import expand
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from tests.support.toy_model import make_seeing_model
from tests.support.toy_model import make_toy_model
from training.rows import build_rows

SEEN = "[image omitted: this policy reads text only]"
LINKED = "[image at a URL omitted: it was not fetched]"
DATA = base64.b64decode("iVBORw0KGgo=")
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
TEXT = {"type": "text", "text": "read a.png"}
AGAIN = {"type": "text", "text": "and again"}
URL = "data:image/png;base64,iVBORw0KGgo="


def png(width: int, height: int, colour: str) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(sink, "PNG")
    return sink.getvalue()


def block(data: bytes) -> dict[str, Any]:
    text = base64.b64encode(data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": text}}


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def in_tool_result(*content: Any, error: bool = False) -> Message:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": list(content), "is_error": error}
    return anthropic_messages.parse({"messages": [{"role": "user", "content": [result]}]}, {}).messages[0]


@pytest.mark.parametrize(
    ("content", "expected", "places"),
    [
        ([TEXT, IMAGE], f"read a.png\n{SEEN}", [11]),
        ([IMAGE], SEEN, [0]),
        ([IMAGE, TEXT, IMAGE], f"{SEEN}\nread a.png\n{SEEN}", [0, len(SEEN) + 12]),
    ],
)
@pytest.mark.parametrize("error", [False, True])
def test_o02_placeholder_in_order(content: list[Any], expected: str, places: list[int], error: bool) -> None:
    message = in_tool_result(*content, error=error)
    assert message.role == "tool"
    assert message.content == ("[tool error]\n" if error else "") + expected
    assert [f for f in message.flags if f != "tool_error"] == ["image_omitted"] * len(places)
    assert [image.at for image in message.images] == [at + 13 * error for at in places]
    for image in message.images:
        assert message.content[image.at :].startswith(SEEN)
        assert (image.sha256, image.media_type, image.size, image.data) == (sha(DATA), "image/png", 8, DATA)


def test_o02_the_same_in_the_other_dialects() -> None:
    image = {"type": "input_image", "image_url": URL}
    output = [{"type": "input_text", "text": "read a.png"}, image]
    item = {"type": "function_call_output", "call_id": "c1", "output": output}
    part = {"type": "image_url", "image_url": {"url": URL}}
    turn = {"role": "tool", "tool_call_id": "c1", "content": [TEXT, part]}
    inline = {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}
    answer = {"name": "read", "id": "c1", "response": {"output": "read a.png"}, "parts": [inline]}
    messages = [
        in_tool_result(TEXT, IMAGE),
        openai_responses.parse({"input": [item]}, {}).messages[0],
        openai_chat.parse({"messages": [turn]}, {}).messages[0],
        gemini.parse({"contents": [{"parts": [{"functionResponse": answer}]}]}, {}).messages[0],
    ]
    for message in messages:
        assert message.content == f"read a.png\n{SEEN}"
        assert message.flags == ("image_omitted",)
        assert [(i.sha256, i.at, i.data) for i in message.images] == [(sha(DATA), 11, DATA)]


def test_o02_an_image_in_an_assistant_turn_keeps_its_place() -> None:
    said = [{"role": "assistant", "content": [TEXT, IMAGE]}]
    item = {"role": "assistant", "content": [{"type": "output_text", "text": "read a.png"}, {**IMAGE}]}
    for message in (
        anthropic_messages.parse({"messages": said}, {}).messages[0],
        openai_responses.parse({"input": [item]}, {}).messages[0],
    ):
        assert (message.role, message.content) == ("assistant", f"read a.png\n{SEEN}")
        assert [image.at for image in message.images] == [11]


@pytest.mark.parametrize("url", ["https://example.invalid/a.png", "http://127.0.0.1:1/a.png", "file:///etc/passwd"])
def test_o02_a_url_is_not_fetched(url: str) -> None:
    for content in (
        [{"type": "image", "source": {"type": "url", "url": url}}],
        [{"type": "image_url", "image_url": url}],
    ):
        message = openai_chat.parse({"messages": [{"role": "user", "content": content}]}, {}).messages[0]
        assert (message.content, message.flags) == (LINKED, ("image_url_not_fetched",))
        assert [(i.url, i.sha256, i.data) for i in message.images] == [(url, "", b"")]


@pytest.mark.parametrize(
    ("source", "field", "says"),
    [
        ({"type": "base64", "media_type": "image/png", "data": "iVBORw0KGg"}, "source.data", "not valid base64"),
        ({"type": "base64", "media_type": "image/png", "data": "é"}, "source.data", "not valid base64"),
        ({"type": "base64", "media_type": "image/png", "data": "A" * (28 << 20)}, "source.data", "larger than 20 MiB"),
        ({"type": "base64", "media_type": "image/png", "data": " " * 8}, "source.data", "empty"),
        ({"type": "base64", "media_type": "image/png"}, "source.data", "non-empty string"),
        ({"type": "url", "url": "data:image/png;base64"}, "source.url", "no comma"),
        ({"type": "carrier pigeon"}, "source.type", "not one of"),
    ],
)
def test_o02_what_cannot_be_read_is_refused_by_its_place(source: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(Problem, match=says) as refused:
        in_tool_result(TEXT, {"type": "image", "source": source})
    assert refused.value.status == 400
    assert refused.value.param == f"messages[0].content[0].content[1].{field}"


# Through the proxy.

RED, BLUE, WIDE = png(100, 70, "red"), png(100, 70, "blue"), png(200, 40, "green")


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy_model(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def seeing_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_seeing_model(tmp_path_factory.mktemp("seeing"))


def says(model: Path) -> Callable[[list[int], int], list[int]]:
    ids = AutoTokenizer.from_pretrained(str(model)).encode("ok<|im_end|>", add_special_tokens=False)
    return lambda prompt, n: ids


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


OK = {"role": "assistant", "content": [{"type": "text", "text": "ok"}]}


async def ask(model: Path, folder: Path, engine: ScriptedEngine, *conversations: list[Any]) -> list[dict[str, Any]]:
    async with serving(engine), recording(model, engine.url, folder) as proxy:
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            for messages in conversations:
                answer = await client.post("/v1/messages", json={"model": "m", "max_tokens": 9, "messages": messages})
                assert answer.status_code == 200, answer.text
        return (await proxy.end(rollout))[1]


async def test_o02_an_image_is_stored_once_and_is_part_of_what_a_turn_is(text_model: Path, tmp_path: Path) -> None:
    spelled = {
        "type": "image",
        "source": {"type": "url", "url": "data:image/png;base64," + base64.b64encode(RED).decode()},
    }
    rows = await ask(
        text_model,
        tmp_path,
        ScriptedEngine(says(text_model)),
        [user(TEXT, block(RED))],
        [user(TEXT, spelled), OK, user(block(RED))],  # the same picture in another spelling
        [user(TEXT, block(BLUE)), OK, user(AGAIN)],  # another picture
    )
    assert [row["parent_call"] for row in rows] == [None, 0, None]
    assert {p.name for p in (tmp_path / "images").iterdir()} == {f"{sha(RED)}.png", f"{sha(BLUE)}.png"}
    assert (tmp_path / "images" / f"{sha(RED)}.png").read_bytes() == RED
    (message, _) = json.loads(rows[0]["messages_delta"])
    assert message["content"] == f"read a.png\n{SEEN}"
    kept = {"sha256": sha(RED), "media_type": "image/png", "size": len(RED), "at": 11, "shown": False}
    assert message["images"] == [kept]
    assert "base64" not in "".join(row["messages_delta"] for row in rows)
    assert [row["images"] for row in rows] == [None] * 3


async def test_o02_a_policy_that_sees_is_shown_the_images_in_order(seeing_model: Path, tmp_path: Path) -> None:
    engine = ScriptedEngine(says(seeing_model), expand=expand(seeing_model))
    rows = await ask(
        seeing_model,
        tmp_path,
        engine,
        [user(TEXT, block(RED), AGAIN, block(WIDE))],
        [user(TEXT, block(RED), AGAIN, block(WIDE)), OK, user(AGAIN, block(RED))],
    )
    first, second = engine.asked
    assert [part["uuid"] for part in first["content_parts"]] == [sha(RED), sha(WIDE)]
    assert [part["uuid"] for part in second["content_parts"]] == [sha(RED), sha(WIDE), sha(RED)]
    tokenizer = AutoTokenizer.from_pretrained(str(seeing_model))
    shown = "<|vision_start|><|image_pad|><|vision_end|>"
    opening = f"<|im_start|>user\nread a.png\n{shown}\nand again\n{shown}<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(first["token_ids"]) == opening
    following = f"ok<|im_end|>\n<|im_start|>user\nand again\n{shown}<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(second["token_ids"]) == opening + following
    # The records hold the prompt as the engine expanded it, and the second one keeps all of the first.
    whole = rows[0]["prompt_delta_ids"] + rows[0]["sampled_ids"]
    assert rows[0]["prompt_delta_ids"] == engine.expand(first)  # type: ignore[misc]
    assert whole + rows[1]["prompt_delta_ids"] == engine.expand(second)  # type: ignore[misc]
    assert [(row["parent_call"], row["findings"]) for row in rows] == [(None, []), (0, [])]
    assert rows[1]["prompt_prefix_len"] == len(whole)
    assert [row["images"] for row in rows] == [[sha(RED), sha(WIDE)], [sha(RED), sha(WIDE), sha(RED)]]
    message = json.loads(rows[0]["messages_delta"])[0]
    assert "flags" not in message
    assert message["content"] == "read a.png\n[image]\nand again\n[image]"
    assert [image["shown"] for image in message["images"]] == [True, True]
    assert len(list((tmp_path / "images").iterdir())) == 2
    # For a learner that reads text only, what was sampled after an image is refused, by that reason.
    trained, report = build_rows(rows, max_row_tokens=1000)
    assert (trained, dict(report.refused)) == ([], {"images_in_prompt": 2})


async def test_o02_other_images_of_the_same_size_share_no_prefix(seeing_model: Path, tmp_path: Path) -> None:
    """Their placeholder tokens are the same ids, but not the same prompt."""
    engine = ScriptedEngine(says(seeing_model), expand=expand(seeing_model))
    answers = [[user(block(RED))], [user(block(BLUE)), OK, user(AGAIN)]]
    rows = await ask(seeing_model, tmp_path, engine, *answers)
    assert [(row["parent_call"], row["prompt_prefix_len"]) for row in rows] == [(None, 0), (None, 0)]


async def test_o02_an_engine_that_expands_otherwise_is_found(seeing_model: Path, tmp_path: Path) -> None:
    engine = ScriptedEngine(says(seeing_model), expand=lambda body: body["token_ids"])
    (row,) = await ask(seeing_model, tmp_path, engine, [user(block(RED))])
    assert row["findings"] == ["prompt_ids_differ"]


async def test_o02_a_picture_that_does_not_decode_is_refused_for_a_policy_that_sees(
    seeing_model: Path, tmp_path: Path
) -> None:
    engine = ScriptedEngine(says(seeing_model), expand=expand(seeing_model))
    async with serving(engine), recording(seeing_model, engine.url, tmp_path) as proxy:
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            body = {"model": "m", "max_tokens": 9, "messages": [user(IMAGE)]}
            answer = await client.post("/v1/messages", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == f"image {sha(DATA)[:12]} (image/png) cannot be decoded"
        assert engine.asked == []
