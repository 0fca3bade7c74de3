"""Sub-agents of the real Claude Code and Codex: two with the same prompt at the same time, and their parent.

Chains are agents, the calls of a sub-agent carry its id, there is one reward, and every sampled token is trained once.
Both harnesses are shipped with sub-agents off (they need a larger request); here they are on.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import cast

import pytest

from proxy_addons import records
from proxy_addons.conversation import Message
from tasks import builtin
from tasks import taskset
from tasks.harnesses import Harness
from tasks.harnesses import claude_code
from tasks.harnesses import codex
from tasks.rollout import fill
from tests.tasks.arena import arena
from tests.tasks.arena import slot
from tests.tasks.harnesses.real import installed
from tests.tasks.harnesses.scripts import Changed
from tests.tasks.harnesses.scripts import Scripted
from tests.tasks.harnesses.scripts import say
from tests.tasks.harnesses.truth import assert_trained_once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ORDER = "You are a helper: find the code."


def with_agents(instruction: str, base_url: str, key: str, model: str) -> tuple[str, ...]:
    """Claude Code has no Agent tool under --bare."""
    argv = [arg for arg in claude_code.command(instruction, base_url, key, model) if arg != "--bare"]
    argv[argv.index("--tools") + 1] = "Bash,Agent"
    return tuple(argv)


def prepare_with_agents(home: Path, base_url: str, key: str, model: str) -> None:
    codex.prepare(home, base_url, key, model)
    path = home / ".codex/config.toml"
    path.write_text(path.read_text().replace("[agents]\nenabled = false\n", ""))


def claude_code_main(background: bool) -> list[Message]:
    order = {"description": "find it", "prompt": ORDER, "subagent_type": "general-purpose"}
    call = ("Agent", json.dumps(order | {"run_in_background": background}))
    return [say("The helpers will do the file.", call, call), say("Done.")]


def codex_main() -> list[Message]:
    call = ("multi_agent_v1__spawn_agent", json.dumps({"message": ORDER}))
    return [
        say("The helpers will do the file.", call, call),
        say("", ("multi_agent_v1__wait_agent", '{"targets": []}')),
        say("Done."),
    ]


def wait_for_all(turn: Message, messages: Sequence[Message]) -> Message:
    """The ids to wait for are only known from the answers."""
    if not turn.tool_calls or turn.tool_calls[0].name != "multi_agent_v1__wait_agent":
        return turn
    ids = [json.loads(m.content)["agent_id"] for m in messages if m.role == "tool" and "agent_id" in m.content]
    return replace(turn, tool_calls=(replace(turn.tool_calls[0], arguments=json.dumps({"targets": ids})),))


async def roll(harness: Any, main: list[Message], shell: tuple[str, str], folder: Path) -> None:
    builtin.generate(folder / "tasks", 3, 6, 0)
    task = next(t for t in taskset.load(folder / "tasks") if t.kind == "read")
    path = re.search(r"[a-z]+/[a-z]+[.]txt", task.instruction)
    assert path
    command = json.dumps({shell[1]: f"sed -n 's/.*code=\\([a-z]*\\).*/\\1/p' {path[0]} > answer.txt; echo written"})
    helper = [say("", (shell[0], command)), say("The helper has written the file.")]
    policy = Scripted(main=main, sub=helper, marked=ORDER, fill_in=wait_for_all)
    async with arena(folder, policy, max_model_len=200_000, timeout_s=100.0) as place:
        row = await fill(slot(task, cast(Harness, harness)), place)
    calls = records.read(row["calls_path"], records.CALLS)
    said = [(call["chain"], call["agent"], call["status"]) for call in calls]
    assert (row["exit"], row["reward"], row["complete"]) == ("completed", 1.0, True), (row, said)
    agents = {call["agent"] for call in calls}
    assert None in agents and len(agents) == row["chains"] == 3, said
    assert len({(call["chain"], call["agent"]) for call in calls}) == 3, said
    for agent in agents - {None}:
        assert sum(call["agent"] == agent for call in calls) == len(helper), said
    assert_trained_once(calls, policy, folder / "model")


@pytest.mark.parametrize("background", [False, True])
async def test_claude_code(background: bool, tmp_path: Path) -> None:
    installed("claude_code")
    harness = Changed("claude_code", command=with_agents)
    await roll(harness, claude_code_main(background), ("Bash", "command"), tmp_path)


async def test_codex(tmp_path: Path) -> None:
    installed("codex")
    await roll(Changed("codex", prepare=prepare_with_agents), codex_main(), ("exec_command", "cmd"), tmp_path)
