"""A ClawEval task from its checkout to a reward: real services, real sandbox, real harness, the small grader."""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from proxy_addons import records
from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from tasks import adapters
from tasks import harnesses
from tasks.rollout import fill
from tasks.rollout import read_row
from tasks.rollout import row_path
from tasks.taskset import Task
from tasks.teacher import shell_call
from tests.tasks.adapters import checkout
from tests.tasks.arena import Teacher
from tests.tasks.arena import arena
from tests.tasks.arena import slot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TOOL = "python3 skills/claw-tools/tool.py"
RIGHT = (f"{TOOL} ledger_list '{{}}'", f'{TOOL} ledger_flag \'{{"entry": "b"}}\' && echo b > report.txt')
WRONG = (f'{TOOL} ledger_flag \'{{"entry": "z"}}\'', "echo a > report.txt")


class Script(Teacher):
    """Runs commands, one a turn, or calls other tools, named with their arguments; then says what it found."""

    def __init__(self, *commands: str | tuple[str, str], end: str = "It was b.") -> None:
        super().__init__()
        self.commands = commands
        self.end = end
        self.read: list[str] = []

    def turn(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        answers = [message.content for message in messages if message.role == "tool"]
        self.read = answers
        if len(answers) == len(self.commands):
            return Message("assistant", self.end)
        command = self.commands[len(answers)]
        name, arguments = shell_call(tools, command) if isinstance(command, str) else command
        return Message("assistant", tool_calls=(ToolCall(f"call_{len(answers)}", name, arguments),))


BY_MCP = (("mcp__claw__ledger_list", "{}"), ("mcp__claw__ledger_flag", '{"entry": "b"}'), "echo b > report.txt")


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return adapters.load(f"claweval:{checkout.make(tmp_path / 'checkout')}", tmp_path / "cache")[0]


@pytest.mark.parametrize("harness", ["claude_code", "codex"])
async def test_an_agent_that_does_it_is_rewarded(tmp_path: Path, task: Task, harness: str) -> None:
    script = Script(*RIGHT)
    async with arena(tmp_path, script) as place:
        row = await fill(slot(task, harnesses.load(harness)), place)
        calls = await asyncio.to_thread(records.read, row["calls_path"], records.CALLS)
    assert (row["reward"], row["error_class"], row["exit"]) == (1.0, None, "completed"), row
    parts = json.loads(row["reward_parts"])
    assert (parts["task_score"], parts["completion"], parts["robustness"]) == (1.0, 1.0, 1.0)
    assert '"id": "b"' in script.read[0]
    assert row["calls"] == len(calls) == 3


@pytest.mark.parametrize("harness", ["claude_code", "codex"])
async def test_an_agent_that_does_it_by_mcp_tools_is_rewarded(tmp_path: Path, harness: str) -> None:
    source, choices = f"claweval:{checkout.make(tmp_path / 'checkout')}", adapters.Choices(tools="mcp")
    (given,) = adapters.load(source, tmp_path / "cache", None, choices)
    script = Script(("mcp__claw__ledger_flag", '{"entry": "z"}'), *BY_MCP)
    async with arena(tmp_path, script) as place:
        row = await fill(slot(given, harnesses.load(harness)), place)
        calls = await asyncio.to_thread(records.read, row["calls_path"], records.CALLS)
    assert (row["reward"], row["error_class"], row["exit"]) == (1.0, None, "completed"), row
    # One call of a tool failed, the one that named no entry; the rest is as by commands.
    parts = json.loads(row["reward_parts"])
    assert (parts["task_score"], parts["completion"], parts["robustness"]) == (0.9, 1.0, 0.5)
    assert "no such entry" in script.read[0] and '"b"' in script.read[1]
    assert row["complete"] and row["calls"] == len(calls) == 5


async def test_an_agent_that_does_not_gets_its_score(tmp_path: Path, task: Task) -> None:
    async with arena(tmp_path, Script(*WRONG)) as place:
        row = await fill(slot(task), place)
    assert (row["reward"], row["error_class"]) == (0.0, None)
    # Said b and left one line, but flagged nothing and wrote a; the one call of a tool failed.
    assert json.loads(row["reward_parts"]) == {
        "task_score": 0.5,
        "completion": 0.5,
        "robustness": 0.5,
        "communication": 0.0,
        "safety": 1.0,
    }


async def test_a_service_that_cannot_start_is_a_new_try_and_never_a_reward(tmp_path: Path, task: Task) -> None:
    (tmp_path / "checkout/mock_services/ledger/server.py").write_text("raise SystemExit('no ledger today')\n")
    async with arena(tmp_path, Script(*RIGHT)) as place:
        row = await fill(slot(task), place)
    assert (row["reward"], row["error_class"], row["try"]) == (None, "InfrastructureError", 1)
    assert "no ledger today" in row["reason"]


class Crasher(Script):
    """Crashes its service in its first `times` tries, and does it right afterwards."""

    def __init__(self, times: int) -> None:
        super().__init__(*RIGHT)
        self.left = times + 1

    def turn(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        if not any(message.role == "tool" for message in messages):
            self.left -= 1
        self.commands = (f'{TOOL} ledger_flag \'{{"entry": "crash"}}\'',) if self.left > 0 else RIGHT
        return super().turn(messages, tools)


@pytest.mark.parametrize(("times", "reward", "error"), [(1, 1.0, None), (2, 0.0, "PolicyFailure")])
async def test_an_agent_that_crashes_its_service_again_does_not_escape_a_verdict(
    tmp_path: Path, task: Task, times: int, reward: float, error: str | None
) -> None:
    server = tmp_path / "checkout/mock_services/ledger/server.py"
    crash = '    if asked.entry == "crash":\n        os._exit(3)\n    flagged.append(asked.entry)'
    text = server.read_text().replace(
        "    if asked.entry not in", '    if asked.entry != "crash" and asked.entry not in'
    )
    server.write_text(text.replace("    flagged.append(asked.entry)", crash))
    async with arena(tmp_path, Crasher(times)) as place:
        place = replace(place, tries=3)
        row = await fill(slot(task), place)
        first = read_row(row_path(place.folder, slot(task).rollout))
    assert first and (first["reward"], first["error_class"]) == (None, "InfrastructureError")
    assert json.loads(first["finding_counts"])["service_died"] == 1
    assert (row["reward"], row["error_class"], row["try"], row["complete"]) == (reward, error, 1, True)
    assert (row["findings"][-1] == "service_died") == (error is not None)


async def test_a_grader_without_a_verdict_is_no_zero(tmp_path: Path, task: Task) -> None:
    (tmp_path / "checkout/tasks/T1_find_twice_paid/grader.py").write_text("raise ValueError('nobody knows')\n")
    async with arena(tmp_path, Script(*RIGHT)) as place:
        row = await fill(slot(replace(task)), place)
    assert (row["reward"], row["error_class"]) == (None, "VerifierError")
    assert "nobody knows" in row["verdict_reason"]


GIVEN = os.environ.get("CLAW_EVAL_CHECKOUT", "")


@pytest.mark.skipif(not GIVEN, reason="CLAW_EVAL_CHECKOUT names no checkout")
@pytest.mark.parametrize("tools", ["commands", "mcp"])
async def test_a_published_task_is_solved_with_its_own_service_and_grader(
    tmp_path: Path, tools: Literal["commands", "mcp"]
) -> None:
    tasks = adapters.load(f"claweval:{GIVEN}", tmp_path / "cache", None, adapters.Choices(tools=tools))
    task = next(task for task in tasks if task.id == "t086-pinbench-calendar-event-creation")
    times = {"start_time": "2026-03-10T15:00:00", "end_time": "2026-03-10T16:00:00"}
    event = json.dumps({"title": "Project Sync", "attendees": ["john@example.com"]} | times)
    by_command, by_mcp = f"{TOOL} calendar_create_event '{event}'", ("mcp__claw__calendar_create_event", event)
    script = Script(by_mcp if tools == "mcp" else by_command, end="Booked, to discuss the Q1 roadmap.")
    async with arena(tmp_path, script) as place:
        row = await fill(slot(task), place)
    assert (row["reward"], row["error_class"]) == (1.0, None), row
