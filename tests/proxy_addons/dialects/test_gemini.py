"""Gemini generateContent: bodies as Gemini CLI sends them, and replies as it reads them."""

from typing import Any

import pytest

from proxy_addons.conversation import Message
from proxy_addons.conversation import Problem
from proxy_addons.conversation import ToolCall
from proxy_addons.dialects import Route
from proxy_addons.dialects import find_route
from proxy_addons.dialects import gemini
from tests.proxy_addons.dialects.wire import SHELL
from tests.proxy_addons.dialects.wire import decode
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import make_request
from tests.proxy_addons.dialects.wire import stream_bytes

GO: dict[str, Any] = {"role": "user", "parts": [{"text": "go"}]}


def call(name: str, **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": {"cmd": "ls"}, **more}, "thoughtSignature": "kept-unread"}


def answer(name: str, response: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": response, **more}}


def parse(*contents: dict[str, Any], **body: Any) -> tuple[Message, ...]:
    return gemini.parse({"contents": list(contents), **body}, {}).messages


@pytest.mark.parametrize("version", ["v1beta", "v1"])
@pytest.mark.parametrize(
    ("method", "purpose"),
    [("generateContent", "generate"), ("streamGenerateContent", "stream"), ("countTokens", "count")],
)
def test_the_path_says_what_is_wanted_of_which_model(version: str, method: str, purpose: str) -> None:
    route = find_route(f"/{version}/models/policy-v1:{method}")
    assert route == Route(gemini, purpose, "policy-v1")  # type: ignore[arg-type]
    assert find_route(f"/{version}/models/policy-v1/other:{method}") is None
    assert find_route(f"/{version}/models/:{method}") is None


def test_a_conversation_with_tools() -> None:
    model = {"role": "model", "parts": [{"text": "hm", "thought": True}, {"text": "I "}, {"text": "look."}, call("sh")]}
    messages = parse(
        GO,
        model,
        {"role": "user", "parts": [answer("sh", {"output": "a.txt"}), {"text": "and now?"}]},
        systemInstruction={"parts": [{"text": "Be brief."}]},
    )
    assert messages == (
        Message("system", "Be brief."),
        Message("user", "go"),
        Message("assistant", "I look.", "hm", (ToolCall("sh_0", "sh", '{"cmd": "ls"}'),)),
        Message("tool", "a.txt", tool_call_id="sh_0"),
        Message("user", "and now?"),
    )


def test_answers_find_their_calls_by_id_or_else_by_name_in_order() -> None:
    model = {"role": "model", "parts": [call("sh", id="x"), call("sh", id="y"), call("ls", id="z")]}
    answers = [answer("ls", {"output": "1"}), answer("sh", {"output": "2"}, id="y"), answer("sh", {"output": "3"})]
    found = parse(GO, model, {"role": "user", "parts": answers})[2:]
    assert [(message.content, message.tool_call_id) for message in found] == [("1", "z"), ("2", "y"), ("3", "x")]


def test_a_failed_tool_is_marked_and_any_other_answer_is_its_json() -> None:
    parts = [answer("sh", {"error": "no such file"}), answer("sh", {"files": ["ä"], "n": 1})]
    failed, other = parse(GO, {"role": "user", "parts": parts})[1:]
    assert (failed.content, failed.flags) == ("[tool error]\nno such file", ("tool_error",))
    assert other.content == '{"files": ["ä"], "n": 1}'


def test_both_spellings_of_field_names_are_read_alike() -> None:
    tools = {"name": "sh", "description": "run", "parametersJsonSchema": {"type": "object", "title": "t"}}
    camel = {
        "contents": [GO, {"role": "model", "parts": [call("sh")]}],
        "systemInstruction": {"parts": [{"text": "s"}]},
        "tools": [{"functionDeclarations": [tools]}],
        "generationConfig": {"maxOutputTokens": 9, "topP": 0.5, "temperature": 1, "stopSequences": ["x"]},
    }
    one = gemini.parse(camel, {})
    assert gemini.parse(_snake(camel), {}) == one
    assert (one.max_tokens, one.top_p, one.temperature, one.stop) == (9, 0.5, 1.0, ("x",))
    assert one.tools[0].parameters == {"type": "object", "title": "t"}


def _snake(value: Any) -> Any:
    if isinstance(value, list):
        return [_snake(entry) for entry in value]
    if isinstance(value, dict):
        return {"".join("_" + c.lower() if c.isupper() else c for c in k): _snake(v) for k, v in value.items()}
    return value


def test_count_tokens_takes_a_whole_request_inside() -> None:
    inner = {"contents": [GO], "systemInstruction": {"parts": [{"text": "s"}]}}
    assert gemini.parse({"generateContentRequest": inner}, {}) == gemini.parse(inner, {})
    assert gemini.count_json(7) == {"totalTokens": 7}


def test_what_the_policy_cannot_read_is_a_placeholder_and_a_flag() -> None:
    parts = [{"text": "see"}, {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}, {"newThing": 1}]
    request = gemini.parse({"contents": [{"parts": parts}], "tools": [{"googleSearch": {}}]}, {})
    assert request.messages[0].flags == ("image_omitted", "unknown_block")
    assert request.messages[0].content.startswith("see\n[image omitted")
    assert request.notes == ("unknown_block:newThing", "hosted_tool_dropped:googleSearch")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "contents"),
        ({"contents": [{"role": "wizard", "parts": []}]}, "contents[0].role"),
        ({"contents": [{"parts": [{"text": 3}]}]}, "contents[0].parts[0].text"),
        ({"contents": [GO], "generationConfig": {"candidateCount": 2}}, "candidateCount"),
        ({"contents": [GO], "generationConfig": {"maxOutputTokens": 0}}, "maxOutputTokens"),
    ],
)
def test_a_wrong_body_names_the_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(Problem) as caught:
        gemini.parse(body, {})
    assert (caught.value.kind, caught.value.param) == ("bad_request", param)


@pytest.mark.parametrize(
    ("mode", "offered", "notes"),
    [
        ("AUTO", 1, ()),
        ("VALIDATED", 1, ()),
        ("NONE", 0, ("tools_withheld",)),
        ("ANY", 1, ("tool_choice_ignored",)),
    ],
)
@pytest.mark.parametrize("spelling", ["toolConfig functionCallingConfig", "tool_config function_calling_config"])
def test_the_calling_mode_says_whether_tools_are_offered(
    spelling: str, mode: str, offered: int, notes: tuple[str, ...]
) -> None:
    outer, inner = spelling.split()
    tools = [{"functionDeclarations": [{"name": "f"}]}]
    request = gemini.parse({"contents": [GO], "tools": tools, outer: {inner: {"mode": mode}}}, {})
    assert (len(request.tools), request.notes) == (offered, notes)


def test_only_the_last_chunk_says_that_it_is_over() -> None:
    reply = make_reply("text", ToolCall("c", "shell", '{"cmd": "ls"}'), reasoning="why")
    chunks = [data for _, data in decode([stream_bytes(gemini, make_request(SHELL), reply, keepalives=1)])]
    assert chunks[0] == {"candidates": []}
    ends = [c["candidates"][0].get("finishReason") for c in chunks[1:]]
    assert ends == [None, None, "STOP"]
    assert chunks[-1]["usageMetadata"] == {
        "promptTokenCount": 100,
        "candidatesTokenCount": 7,
        "totalTokenCount": 107,
        "cachedContentTokenCount": 80,
    }


def test_a_cut_reply_and_errors_have_googles_words() -> None:
    assert gemini.reply_json(make_request(), make_reply("x", finish="length"))["candidates"][0]["finishReason"] == (
        "MAX_TOKENS"
    )
    assert gemini.error_json(Problem("overloaded", "away"))["error"] == {
        "code": 503,
        "message": "away",
        "status": "UNAVAILABLE",
    }
