"""MCP servers of a task: read, refused, and their tools called by the real harnesses."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path

import pytest

from proxy_addons import records
from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.errors import ConfigError
from tasks import harnesses
from tasks import mcp
from tasks import taskset
from tasks import transcript
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
ANSWER = "bolt: forty-two, counted in /workspace"
TEST = f"""\
if [ "$(cat answer.txt)" = "{ANSWER}" ]; then reward=1; else reward=0; fi
echo $reward > $VERIFIER_REWARD_FILE
"""


@dataclass
class Asker(Teacher):
    """Calls the tool of the server, then writes its answer down with the shell tool. `offered` are all tools' names."""

    shell: str = ""
    key: str = ""
    offered: Sequence[str] = ()

    def turn(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        self.offered = [tool.name for tool in tools]
        heard = [message.content for message in messages if message.role == "tool"]
        if not heard:
            return say("", ("mcp__stock__count", '{"part": "bolt"}'))
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
    asked, told = transcript.messages(calls)[-5:-3]
    print(transcript.messages(calls))


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["exit(1)", "import time; time.sleep(4)", "import time; time.sleep(40)"])
@pytest.mark.parametrize(
    ("name", "shell", "key"), [("claude_code", "Bash", "command"), ("codex", "exec_command", "cmd")]
)
async def test_a_server_that_does_not_start(how: str, name: str, shell: str, key: str, tmp_path: Path) -> None:
    policy = Asker(shell=shell, key=key)
    given = task(tmp_path / "tasks")
    (given.environment / "stock.py").write_text(f"{how}\n{SERVER}")
    async with arena(tmp_path, policy) as place:
        row = await fill(slot(given, installed(name)), place)
    print(row["wall_s"] if "wall_s" in row else row["timings"], policy.offered, row["exit"], row["reason"], row["error_class"], row["reward"])
