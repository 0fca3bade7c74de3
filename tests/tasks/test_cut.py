"""Cut rollouts that are gone on with: the real Claude Code and Codex, whose engine fails or whose sandbox is killed."""

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import cast

import psutil
import pytest

from proxy_addons import records
from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.identity import Rollout
from tasks import builtin
from tasks import taskset
from tasks.cut import WRITTEN_S
from tasks.cut import Cut
from tasks.cut import carry_sessions
from tasks.cut import missing_calls
from tasks.rollout import Arena
from tasks.rollout import Slot
from tasks.rollout import fill
from tasks.rollout import recorded
from tasks.rollout import row_path
from tasks.sandboxes import Outcome
from tasks.sandboxes import Sandbox
from tasks.sandboxes import Spec
from tests.tasks.arena import Teacher
from tests.tasks.arena import arena
from tests.tasks.arena import slot
from tests.tasks.harnesses.real import installed
from tests.tasks.harnesses.scripts import Changed
from tests.tasks.harnesses.scripts import say
from tests.tasks.harnesses.truth import assert_trained_once

HARNESSES = pytest.mark.parametrize(
    ("name", "tool", "key"), [("claude_code", "Bash", "command"), ("codex", "exec_command", "cmd")]
)
SLEEP = "98772"
BREAKS = {"claude_code": 1, "codex": 0}
"""Claude Code puts an answer of its own, "No response requested.", between the cut and the word to go on: the template
renders the conversation anew from there."""
TEST = """\
if [ "$(cat made.txt)" = "$(seq 0 3)" ]; then reward=1; else reward=0; fi
echo $reward > $VERIFIER_REWARD_FILE
"""


@dataclass
class Writer(Teacher):
    """Appends four lines to made.txt, one a call of `tool`. Its server answers 500 to the calls `failing`, and in the
    call `sleeping` the tool sleeps after its line."""

    tool: str = ""
    key: str = ""
    failing: Sequence[int] = ()
    sleeping: int = 0

    def turn(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        self.asked += 1
        if self.asked in self.failing:
            raise RuntimeError("unwell")
        done = sum(message.role == "tool" for message in messages)
        if done == 4:
            return say("Done.")
        sleep = f"; sleep {SLEEP}" if self.asked == self.sleeping else ""
        return say("", (self.tool, json.dumps({self.key: f"echo {done} >> made.txt{sleep}"})))


class Noting:
    """A sandbox that notes how long each run of it may take, by its name. The policy's server is well in the second:
    what it answered to a retry in the first might be done there and be cut before it is written down."""

    def __init__(self, real: Sandbox, policy: Writer) -> None:
        self._real = real
        self._policy = policy
        self.walls_s: dict[str, float] = {}

    async def run(self, spec: Spec) -> Outcome:
        if self.walls_s:
            self._policy.failing = ()
        self.walls_s[spec.name] = spec.wall_s
        return await self._real.run(spec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.fixture
def task(tmp_path: Path) -> taskset.Task:
    builtin.generate(tmp_path / "tasks", 3, 1, 0)
    task = taskset.load(tmp_path / "tasks")[0]
    (task.tests / "test.sh").write_text(TEST)
    return task


async def first_and_last(place: Arena, given: Slot) -> list[dict[str, Any]]:
    """Fill the slot; the rows of its first and its last try."""
    last = await fill(given, place)
    assert recorded(place.folder, given, place.tries) == last
    assert not list(place.scratch.iterdir())
    assert not list((place.folder / "calls").glob(".*"))
    return [records.read(str(row_path(place.folder, given.rollout)), records.ROLLOUTS)[0], last]


async def killed(place: Arena, given: Slot) -> list[dict[str, Any]]:
    """As `first_and_last`; the sandbox in which a tool sleeps is killed."""
    filling = asyncio.create_task(first_and_last(place, given))
    sleeping: list[psutil.Process] = []
    while not sleeping:
        assert not filling.done(), filling
        await asyncio.sleep(0.05)
        sleeping = [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", SLEEP]]
    await asyncio.sleep(2 * WRITTEN_S)  # until its session is written down
    init = next(each for each in sleeping[0].parents() if "/run/openforge/init.py" in each.cmdline())
    os.kill(init.pid, signal.SIGKILL)
    return await filling


@pytest.mark.slow
@pytest.mark.timeout(180)
@HARNESSES
async def test_a_rollout_whose_engine_failed_is_gone_on_with(
    name: str, tool: str, key: str, tmp_path: Path, task: taskset.Task
) -> None:
    policy = Writer(tool=tool, key=key, failing=range(3, 1000))
    async with arena(tmp_path, policy) as place:
        sandbox = Noting(place.sandbox, policy)
        place = replace(place, continue_cut=True, sandbox=cast(Sandbox, sandbox))
        rows = await first_and_last(place, slot(task, installed(name)))
    assert [(row["try"], row["continues"], row["error_class"], row["reward"]) for row in rows] == [
        (0, None, "InfrastructureError", None),
        (1, 0, None, 1.0),  # every line is there once: nothing was done again
    ], rows
    calls = records.read(rows[1]["calls_path"], records.CALLS)
    assert [call["call"] for call in calls] == list(range(len(calls)))
    assert {call["rollout"] for call in calls} == {rows[1]["rollout"]}
    assert rows[1]["complete"] and rows[1]["calls"] == len(calls) == policy.asked
    before, after = (json.loads(row["timings"])["rollout"] for row in rows)
    assert after > before
    # What the first try used of the rollout's time, the second has no more.
    walls = [sandbox.walls_s[row["rollout"]] for row in rows]
    assert walls == [place.timeout_s, pytest.approx(place.timeout_s - before)]
    failed = {call["call"] for call in calls if call["status"] != "ok"}
    assert 2 in failed
    answered = [call for call in calls if call["call"] not in failed]
    assert_trained_once(answered, policy, tmp_path / "model", breaks=BREAKS[name])
    # The call after the cut goes on from the last one before it.
    assert next(call["parent_call"] for call in answered if call["call"] > 2) == 1


@pytest.mark.slow
@pytest.mark.timeout(180)
@HARNESSES
async def test_a_rollout_whose_sandbox_was_killed_is_gone_on_with(
    name: str, tool: str, key: str, tmp_path: Path, task: taskset.Task
) -> None:
    policy = Writer(tool=tool, key=key, sleeping=3)
    async with arena(tmp_path, policy) as place:
        place = replace(place, continue_cut=True)
        rows = await killed(place, slot(task, installed(name)))
    assert [(row["exit"], row["continues"], row["reward"]) for row in rows] == [
        ("lost", None, None),
        ("completed", 0, 1.0),
    ], rows
    calls = records.read(rows[1]["calls_path"], records.CALLS)
    assert_trained_once(calls, policy, tmp_path / "model", breaks=BREAKS[name])


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_what_is_left_of_the_calls_is_what_the_next_try_has(tmp_path: Path, task: taskset.Task) -> None:
    policy = Writer(tool="exec_command", key="cmd", sleeping=3)
    async with arena(tmp_path, policy) as place:
        place = replace(place, continue_cut=True, limits=replace(place.limits, max_calls=4))
        rows = await killed(place, slot(task, installed("codex")))
    assert (rows[1]["exit"], rows[1]["continues"], rows[1]["reward"]) == ("out_of_calls", 0, 1.0), rows
    assert policy.asked == 4


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_by_default_a_cut_rollout_begins_afresh(tmp_path: Path, task: taskset.Task) -> None:
    policy = Writer(tool="Bash", key="command", failing=[3])
    async with arena(tmp_path, policy) as place:
        rows = await first_and_last(place, slot(task))
    assert [(row["continues"], row["reward"]) for row in rows] == [(None, None), (None, 1.0)]
    assert rows[1]["calls"] == 5


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_harness_that_does_not_go_on_is_our_failure(tmp_path: Path, task: taskset.Task) -> None:
    policy = Writer(tool="Bash", key="command", failing=[3])
    given = slot(task, Changed("claude_code", resume=lambda argv, calls: ("/bin/false",)))
    async with arena(tmp_path, policy) as place:
        place = replace(place, continue_cut=True, tries=3)
        _, last = await first_and_last(place, given)
        second = records.read(str(row_path(place.folder, given.rollout.next_try())), records.ROLLOUTS)[0]
    assert (second["continues"], second["error_class"], second["reward"]) == (0, "InfrastructureError", None)
    assert second["reason"] == "claude_code did not go on with its session (exited)"
    assert (last["try"], last["continues"], last["reward"]) == (2, None, 1.0)


@pytest.mark.parametrize(
    ("parents", "cuts", "missing"),
    [
        ([None, 0, 1], (2,), False),
        ([None, 0, 0], (2,), True),
        ([None, 0, None], (2,), True),
        ([None, 0], (2,), False),
        ([None, 0, 1, 2], (2, 3), False),
        ([None, 0, 0, 2], (2, 3), True),  # a second cut does not make the first one good
        ([None, 0, 1], (2, 2), False),
    ],
)
def test_a_session_that_lacks_the_last_calls_is_told(
    parents: list[int | None], cuts: tuple[int, ...], missing: bool
) -> None:
    calls: list[dict[str, Any]] = [
        {"call": n, "parent_call": parent, "status": "ok", "findings": []} for n, parent in enumerate(parents)
    ]
    assert missing_calls(calls, Cut(Rollout("r", 1, "t", 0), Path(), 1.0, 2, cuts)) is missing


def test_sessions_are_carried_and_nothing_else(tmp_path: Path) -> None:
    home, to, elsewhere = tmp_path / "home", tmp_path / "to", tmp_path / "elsewhere"
    for folder in (home / "s/a", home / "s/e", elsewhere):
        folder.mkdir(parents=True)
    for file in ("s/a/one.jsonl", "s/a/key.txt", ".bashrc"):
        (home / file).write_text(file)
    (elsewhere / "two.jsonl").write_text("not the agent's")
    (home / "s/a/two.jsonl").symlink_to(elsewhere / "two.jsonl")
    (home / "s/b").symlink_to(elsewhere)
    (home / "s/a/itself.jsonl").symlink_to("itself.jsonl")
    os.mkfifo(home / "s/a/three.jsonl")
    assert carry_sessions("s/*/*.jsonl", home, to)
    assert [path.relative_to(to).as_posix() for path in to.rglob("*") if path.is_file()] == ["s/a/one.jsonl"]
    assert not carry_sessions("s/e/*.jsonl", home, to)
