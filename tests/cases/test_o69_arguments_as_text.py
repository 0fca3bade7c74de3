"""O69: tool arguments come back as they were said, key order included, and render to the same ids."""

import json
from pathlib import Path

import pytest

from proxy_addons import records
from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from proxy_addons.conversation import message_json
from proxy_addons.ledger import compile_calls
from proxy_addons.rendering import Rendering
from proxy_addons.rendering import load_rendering
from tests.support.toy_model import make_toy_model

ARGUMENTS = ['{"cmd": "ls"}', '{"path": "/x", "n": 3}', '{"n": 3, "path": "/x"}', '{"v": 1}', '{"v": "1"}', "{}"]
SCHEMA = {"type": "object", "properties": {"z": {}, "a": {"type": "string"}}, "required": []}
TOOL = Tool("sh", "run", SCHEMA)


@pytest.fixture(scope="module")
def rendering(tmp_path_factory: pytest.TempPathFactory) -> Rendering:
    return load_rendering(make_toy_model(tmp_path_factory.mktemp("toy")))


def test_o69_read_back_equal_and_rendered_to_the_same_ids(tmp_path: Path, rendering: Rendering) -> None:
    calls = tuple(ToolCall(f"call_{n}", "sh", text) for n, text in enumerate(ARGUMENTS))
    messages = [Message("user", "go"), Message("assistant", "", "", calls)]
    messages += [Message("tool", "done", tool_call_id=call.id) for call in calls]
    ids = rendering.render(messages, [TOOL])[0].tolist()
    intent = {"kind": "intent", "call": 0, "parent_call": None, "whole_prefix": False, "request_key": "k"}
    intent |= {"messages_delta": [message_json(message) for message in messages], "prompt_delta_ids": ids}
    lines = [intent, {"kind": "terminal", "call": 0, "status": "ok"}, {"kind": "end", "calls": 1}]
    (tmp_path / "l").write_text("".join(records.to_json(line) + "\n" for line in lines))
    rows, complete = compile_calls(tmp_path / "l", {"rollout": "r"})
    assert complete
    records.write(str(tmp_path / "x.parquet"), records.table(rows, records.CALLS))
    (row,) = records.read(str(tmp_path / "x.parquet"), records.CALLS)
    read = [_message(each) for each in json.loads(row["messages_delta"])]
    assert read == messages
    assert [call.arguments for call in read[1].tool_calls] == ARGUMENTS
    again = rendering.render(read, [TOOL])[0].tolist()
    assert again == row["prompt_delta_ids"] == ids


def _message(stored: dict[str, object]) -> Message:
    calls = tuple(ToolCall(**call) for call in stored.pop("tool_calls", ()))  # type: ignore[attr-defined]
    return Message(**stored, tool_calls=calls)  # type: ignore[arg-type]
