"""O06: a tool call is to be run though the engine says `stop`; one that the length limit cut stays cut."""

from typing import Any

import pytest

from proxy_addons.conversation import Finish
from proxy_addons.conversation import ToolCall
from tests.proxy_addons.dialects.wire import DIALECTS
from tests.proxy_addons.dialects.wire import SHELL
from tests.proxy_addons.dialects.wire import assemble
from tests.proxy_addons.dialects.wire import decode
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import make_request
from tests.proxy_addons.dialects.wire import stream_bytes


def _why(name: str, answer: dict[str, Any]) -> Any:
    if name == "anthropic_messages":
        return answer["stop_reason"]
    if name == "openai_responses":
        return answer["status"], answer["incomplete_details"], answer["output"][-1]["status"]
    if name == "gemini":
        return answer["candidates"][0]["finishReason"]
    return answer["choices"][0]["finish_reason"]


CUT = {"reason": "max_output_tokens"}
WANTED = {
    ("anthropic_messages", "stop"): "tool_use",
    ("anthropic_messages", "length"): "max_tokens",
    ("openai_responses", "stop"): ("completed", None, "completed"),
    ("openai_responses", "length"): ("incomplete", CUT, "incomplete"),
    ("openai_chat", "stop"): "tool_calls",
    ("openai_chat", "length"): "length",
    ("gemini", "stop"): "STOP",
    ("gemini", "length"): "MAX_TOKENS",
}


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize(("finish", "arguments"), [("stop", '{"cmd": "ls"}'), ("length", '{"cmd": "l')])
def test_o06_finish(name: str, finish: Finish, arguments: str) -> None:
    request = make_request(SHELL)
    reply = make_reply("", ToolCall("c1", "shell", arguments), finish=finish)
    whole = DIALECTS[name].reply_json(request, reply)
    streamed = assemble(name, decode([stream_bytes(DIALECTS[name], request, reply)]))
    assert _why(name, whole) == _why(name, streamed) == WANTED[name, finish]
