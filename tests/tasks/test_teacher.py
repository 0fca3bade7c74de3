import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.errors import ConfigError
from tasks import builtin
from tasks import taskset
from tasks.harnesses.mini_swe_agent import SUBMIT
from tasks.teacher import DONE
from tasks.teacher import GIVE_UP
from tasks.teacher import teacher_turn


def tool(name: str, key: str = "command", kind: str = "string") -> Tool:
    return Tool(name, "", {"type": "object", "properties": {key: {"type": kind}}})


BASH = (tool("Read", "path"), tool("Bash"))


def command(message: Message) -> str:
    (call,) = message.tool_calls
    value: Any = json.loads(call.arguments)
    return str(value["command"])


def test_the_teacher_solves_every_kind_from_what_the_conversation_shows(tmp_path: Path) -> None:
    builtin.generate(tmp_path / "set", seed=5, train=48, heldout=12)
    for task in taskset.load(tmp_path / "set"):
        workspace = Path(shutil.copytree(task.environment, tmp_path / "work" / task.id))
        messages = [Message("system", "Be brief."), Message("user", task.instruction)]
        for _ in range(3):
            turn = teacher_turn(messages, BASH)
            messages.append(turn)
            if not turn.tool_calls:
                break
            run = subprocess.run(["sh", "-c", command(turn)], cwd=workspace, capture_output=True, text=True, timeout=10)
            messages.append(Message("tool", run.stdout + run.stderr, tool_call_id=turn.tool_calls[0].id))
        assert messages[-1].content == DONE, messages
        reward = tmp_path / "reward"
        env = {"PATH": os.environ["PATH"], "VERIFIER_REWARD_FILE": str(reward)}
        subprocess.run(["sh", str(task.tests / "test.sh")], cwd=workspace, env=env, timeout=10)
        assert reward.read_text().strip() == "1", messages


def test_the_turn_depends_on_the_conversation_alone() -> None:
    messages = [Message("user", "Run docs/ab.sh until it works.")]
    assert teacher_turn(messages, BASH) == teacher_turn(tuple(messages), BASH)


@pytest.mark.parametrize(
    ("offered", "name", "arguments"),
    [
        (tool("exec_command", "cmd"), "exec_command", {"cmd": "sh docs/ab.sh"}),
        (tool("Bash"), "Bash", {"command": "sh docs/ab.sh"}),
        (tool("shell", "command", "array"), "shell", {"command": ["sh", "-c", "sh docs/ab.sh"]}),
    ],
)
def test_the_shell_tool_is_called_the_harness_way(offered: Tool, name: str, arguments: dict[str, Any]) -> None:
    (call,) = teacher_turn([Message("user", "Run docs/ab.sh until it works.")], (offered,)).tool_calls
    assert (call.name, json.loads(call.arguments)) == (name, arguments)


def test_an_answer_without_what_was_sought_ends_the_work() -> None:
    asked = Message("user", "Write the code in data/ab.txt to answer.txt.")
    answer = Message("tool", "cat: data/ab.txt: No such file or directory")
    assert teacher_turn([asked, answer], BASH).content == GIVE_UP


def test_no_shell_tool_is_an_error_that_says_what_is_offered() -> None:
    with pytest.raises(ConfigError, match="Read"):
        teacher_turn([Message("user", "Run docs/ab.sh until it works.")], (tool("Read", "path"),))


def test_a_task_of_another_set_is_an_error() -> None:
    with pytest.raises(ConfigError, match="built-in"):
        teacher_turn([Message("user", "Write a poem.")], BASH)


@pytest.mark.parametrize("answers", [["nothing of use"], ["code=blue", ""]])
def test_where_a_command_ends_the_task_the_last_turn_is_that_command(answers: list[str]) -> None:
    """mini-swe-agent takes a turn of mere text for an error; what a tool printed is no request for the command."""
    read = Message("user", "Read notes/a.txt and write its code to answer.txt.")
    tools = (tool("bash"),)
    told = [Message("system", f"To end, run `{SUBMIT}`."), read, *(Message("tool", text) for text in answers)]
    assert command(teacher_turn(told, tools)) == SUBMIT
    untold = [read, *(Message("tool", f"{text} {SUBMIT}") for text in answers)]
    assert teacher_turn(untold, tools).content in (DONE, GIVE_UP)
