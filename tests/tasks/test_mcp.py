"""MCP servers of a task: read, refused, and their tools called by the real harnesses."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from flows.config import RunConfig
from flows.train import open_session
from proxy_addons import records
from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.errors import ConfigError
from tasks import harnesses
from tasks import taskset
from tasks import transcript
from tasks.mcp import McpServer
from tasks.rollout import fill
from tests.tasks.arena import Teacher
from tests.tasks.arena import arena
from tests.tasks.arena import slot
from tests.tasks.harnesses.real import installed
from tests.tasks.harnesses.scripts import say
from tests.tasks.harnesses.truth import assert_trained_once
from tests.tasks.test_taskset import make

SERVER = """\
import json, os, sys
TOOL = {"name": "count", "description": "How many there are of a part in stock.", "inputSchema": {
    "type": "object", "properties": {"part": {"type": "string"}}, "required": ["part"]}}
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, given, result = message["method"], message.get("params", {}), {}
    if method == "initialize":
        result = {"protocolVersion": given["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "stock", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [TOOL]}
    elif method == "tools/call":
        said = f"{given['arguments']['part']}: {sys.argv[1]}, counted in {os.getcwd()}"
        result = {"content": [{"type": "text", "text": said}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
TOML = """
[[environment.mcp_servers]]
name = "stock"
transport = "stdio"
command = "python3"
args = ["stock.py", "forty-two"]
"""
TOOL = "mcp__stock__count"
ANSWER = "bolt: forty-two, counted in /workspace"
TEST = f"""\
if [ "$(cat answer.txt)" = "{ANSWER}" ]; then reward=1; else reward=0; fi
echo $reward > $VERIFIER_REWARD_FILE
"""


@dataclass
class Asker(Teacher):
    """Calls the tool of the server, then writes its answer down with the shell tool."""

    shell: str = ""
    key: str = ""

    def turn(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        heard = [message.content for message in messages if message.role == "tool"]
        if not heard:
            return say("", (TOOL, '{"part": "bolt"}'))
        if len(heard) == 1:
            found = ANSWER if ANSWER in heard[0] else "nothing"
            return say("", (self.shell, json.dumps({self.key: f"echo '{found}' > answer.txt"})))
        return say("Done.")


def task(root: Path, toml: str = TOML) -> taskset.Task:
    folder = make(root, toml=toml)
    (folder / "environment/stock.py").write_text(SERVER)
    (folder / "tests/test.sh").write_text(TEST)
    return taskset.load(root)[0]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "shell", "key"), [("claude_code", "Bash", "command"), ("codex", "exec_command", "cmd")]
)
async def test_the_harness_calls_a_tool_of_the_tasks_server(name: str, shell: str, key: str, tmp_path: Path) -> None:
    policy = Asker(shell=shell, key=key)
    async with arena(tmp_path, policy) as place:
        row = await fill(slot(task(tmp_path / "tasks"), installed(name)), place)
    assert (row["exit"], row["reward"], row["error_class"]) == ("completed", 1.0, None), row
    calls = records.read(row["calls_path"], records.CALLS)
    assert row["complete"] and len(calls) == 3
    assert_trained_once(calls, policy, tmp_path / "model")
    first, asked, told = transcript.messages(calls)[-6:-3]
    assert first["content"] == "Do it."
    assert [(call["name"], call["arguments"]) for call in asked["tool_calls"]] == [(TOOL, '{"part":"bolt"}')]
    assert told["content"].splitlines()[-1] == ANSWER


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["claude_code", "codex"])
async def test_without_a_tasks_server_there_is_no_verdict(name: str, tmp_path: Path) -> None:
    given = task(tmp_path / "tasks")
    (given.environment / "stock.py").write_text("raise SystemExit(1)\n")
    async with arena(tmp_path, Asker(shell="Bash", key="command")) as place:
        row = await fill(slot(given, installed(name)), place)
    assert (row["error_class"], row["reward"]) == ("HarnessError", None), row
    assert "stock" in row["reason"], row


async def test_a_harness_that_cannot_be_given_a_server_is_refused_before_the_run(tmp_path: Path) -> None:
    assert [name for name in harnesses.NAMES if hasattr(harnesses.load(name), "with_mcp")] == ["claude_code", "codex"]
    task(tmp_path / "tasks")
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    folders = {"model": str(tmp_path / "model"), "tasks": str(tmp_path / "tasks"), "runs_dir": str(tmp_path / "runs")}
    config = RunConfig.model_validate(folders | {"harnesses": ["codex", "qwen_code"]})
    with pytest.raises(ConfigError, match="task one-1: it has MCP servers, and qwen_code cannot be given any"):
        async with open_session(config):
            pass
    assert not (tmp_path / "runs").exists()


def test_the_servers_that_a_task_declares(tmp_path: Path) -> None:
    assert task(tmp_path).mcp_servers == (McpServer("stock", "python3", ("stock.py", "forty-two")),)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"stdio"', '"streamable-http"', "transport of stock must be stdio, a program in the sandbox"),
        ('transport = "stdio"', "", "transport of stock must be stdio"),  # Harbor's default is sse
        ('"stock"', '"st.ock"', "name must be of at most 40 letters"),
        ('"python3"', '""', "command of stock must be the program to start"),
        ('["stock.py", "forty-two"]', '"stock.py"', "args of stock must be a list of texts"),
        ('command = "python3"', 'command = "python3"\nenv = {}', "env of stock is not used here; leave it out"),
        (TOML, TOML + TOML, "two servers have one name"),
        (TOML, '[environment]\nmcp_servers = "stock"', "must be tables"),
    ],
)
def test_what_is_wrong_is_told(old: str, new: str, said: str, tmp_path: Path) -> None:
    make(tmp_path, toml=TOML.replace(old, new))
    (problem,) = taskset.validate(tmp_path)
    assert problem.startswith("task one-1: task.toml: environment.mcp_servers") and said in problem
