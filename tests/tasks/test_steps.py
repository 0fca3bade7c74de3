"""Tasks of several steps: read, laid out, run one after the other in real sandboxes, and made into one reward."""

import asyncio
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy_addons import records
from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from proxy_addons.errors import VerifierError
from tasks import steps
from tasks import taskset
from tasks.rollout import fill
from tasks.sandboxes import Outcome
from tasks.sandboxes import Sandbox
from tasks.sandboxes import Spec
from tasks.steps import Step
from tasks.teacher import shell_call
from tasks.verify import Verdict
from tests.tasks.arena import Teacher
from tests.tasks.arena import arena
from tests.tasks.arena import slot
from tests.tasks.boxes import BACKENDS
from tests.tasks.boxes import here
from tests.tasks.boxes import spec

TEST = """\
if [ "$(cat out.txt)" = "$(cat /tests/wanted)" ]; then reward=1; else reward=0.5; fi
echo $reward > $VERIFIER_REWARD_FILE
"""


def make(root: Path, toml: str = "", names: Sequence[str] = ("one", "two")) -> Path:
    """A task whose step NAME wants NAME in out.txt; test.sh is shared."""
    folder = root / "task-1"
    (folder / "environment").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "tests/test.sh").write_text(TEST)
    tables = "".join(f'[[steps]]\nname = "{name}"\n' for name in names)
    (folder / "task.toml").write_text(toml or tables)
    for name in names:
        (folder / "steps" / name / "tests").mkdir(parents=True)
        (folder / "steps" / name / "instruction.md").write_text(f"Write {name} to out.txt.\n")
        (folder / "steps" / name / "tests/wanted").write_text(name)
    return folder


def read(folder: Path) -> tuple[tuple[Step, ...], list[str]]:
    return steps.read(folder, tomllib.loads((folder / "task.toml").read_text()), 60.0, 30.0)


def test_limits_and_thresholds(tmp_path: Path) -> None:
    toml = """
        multi_step_reward_strategy = "final"
        [[steps]]
        name = "two"
        min_reward = 0.5
        [steps.agent]
        timeout_sec = 5
        [[steps]]
        name = "one"
        min_reward = { safety = 1.0 }
    """
    (two, one), problems = read(make(tmp_path, toml))
    assert not problems
    assert (two.name, two.agent_timeout_s, two.verifier_timeout_s, two.min_reward) == ("two", 5, 30.0, {"reward": 0.5})
    assert (one.agent_timeout_s, one.min_reward) == (60.0, {"safety": 1.0})


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("steps = 3", "steps must be tables"),
        ('[[steps]]\nname = "one"\n[[steps]]\nname = "three"', "steps/three/instruction.md is missing"),
        ('[[steps]]\nname = "one"', "steps/two: task.toml does not name it"),
        ('[[steps]]\nname = "../x"', "a step's name must be that of a folder"),
        ('[[steps]]\nname = "one"\nmin_reward = "high"', "steps.min_reward of one must be a number"),
        ('[[steps]]\nname = "one"\n[steps.agent]\ntimeout_sec = -1', "steps.agent.timeout_sec of one must be"),
        ('[[steps]]\nname = "one"\n[steps.healthcheck]\ncommand = "true"', "steps.healthcheck of one is not run here"),
        ('[[steps]]\nname = "one"\n[steps.verifier]\nenvironment_mode = "separate"', "of one must be shared"),
        ('[[steps]]\nname = "one"\n[[steps]]\nname = "one"', "two steps have one name"),
        ('multi_step_reward_strategy = "max"\n[[steps]]\nname = "one"', "must be one of mean, final"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, toml: str, said: str) -> None:
    assert any(said in problem for problem in read(make(tmp_path, toml))[1])


def test_a_step_without_any_test_is_told(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "tests/test.sh").unlink()
    assert len([problem for problem in read(folder)[1] if "tests/test.sh is missing" in problem]) == 2


def test_a_steps_files_never_go_through_a_link_of_the_agents(tmp_path: Path) -> None:
    folder = make(tmp_path)
    workdir = folder / "steps/one/workdir"
    (workdir / "data").mkdir(parents=True)
    (workdir / "data/in.txt").write_text("new")
    (workdir / "note").write_text("new")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/note").write_text("old")
    workspace = tmp_path / "workspace"
    (workspace / "keep").mkdir(parents=True)
    (workspace / "data").symlink_to(tmp_path / "elsewhere")
    (workspace / "note").symlink_to(tmp_path / "elsewhere/note")
    steps.lay_out(read(folder)[0][0], workspace)
    assert (workspace / "data/in.txt").read_text() == "new"
    assert (workspace / "note").read_text() == "new"
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["note"]
    assert (tmp_path / "elsewhere/note").read_text() == "old"
    assert (workspace / "keep").is_dir()


def verdict(reward: float | None, *flags: str, **parts: float) -> Verdict:
    return Verdict(reward, parts, "said", flags)


@pytest.mark.parametrize(
    ("least", "found", "goes_on"),
    [
        ({}, verdict(0.0), True),
        ({"reward": 0.5}, verdict(0.5), True),
        ({"reward": 0.5}, verdict(0.4), False),
        ({"safety": 1.0}, verdict(1.0, safety=1.0), True),
        ({"safety": 1.0}, verdict(1.0), False),
        ({}, verdict(None), False),
    ],
)
def test_when_the_next_step_begins(least: dict[str, float], found: Verdict, goes_on: bool) -> None:
    assert steps.goes_on(Step("one", "", Path(), 1.0, 1.0, least), found) is goes_on


def test_the_reward_of_the_steps_that_ran() -> None:
    three = [Step(name, "", Path(), 1.0, 1.0, {}) for name in ("one", "two", "three")]
    mean = steps.combine("mean", three, [verdict(1.0, "planted: a"), verdict(0.5, "planted: a", "planted: b")])
    assert (mean.reward, mean.parts, mean.flags) == (0.75, {"one": 1.0, "two": 0.5}, ("planted: a", "planted: b"))
    assert mean.reason == "2 of 3 steps; the last: said"
    assert steps.combine("final", three, [verdict(1.0), verdict(0.5)]).reward == 0.5


@pytest.mark.parametrize("strategy", steps.STRATEGIES)
def test_a_step_without_a_verdict_is_no_zero(strategy: str) -> None:
    two = [Step(name, "", Path(), 1.0, 1.0, {}) for name in ("one", "two")]
    found = steps.combine(strategy, two, [verdict(1.0), verdict(None)])
    assert (found.reward, found.reason) == (None, "step two: said")
    assert steps.combine(strategy, two, []).reward is None


async def run(folder: Path, place: Path, sandbox: Sandbox, lines: dict[str, str]) -> tuple[Outcome, list[Verdict]]:
    """Run the steps with a shell line in the place of each session; `exit 9` is a harness that gave up."""

    async def session(step: Step, given: Spec) -> tuple[Outcome, bool]:
        outcome = await sandbox.run(Spec(**{**vars(given), "argv": ("bash", "-c", lines[step.name])}))
        return outcome, outcome.exit_code == 0

    return await steps.run(folder, read(folder)[0], spec(place, ""), session, sandbox, place / "scratch")


@BACKENDS
async def test_steps_share_a_workspace_and_each_has_its_own_tests(tmp_path: Path, backend: str) -> None:
    folder = make(tmp_path)
    workdir = folder / "steps/two/workdir"
    workdir.mkdir()
    (workdir / "setup.sh").write_text("cp out.txt before.txt\nrm -- setup.sh\n")
    lines = {
        "one": "echo one > out.txt",
        "two": "[ ! -e setup.sh ] && [ $(cat before.txt) = one ] && echo two > out.txt",
    }
    outcome, verdicts = await run(folder, tmp_path, here(backend), lines)
    assert (outcome.reason, outcome.exit_code) == ("exited", 0)
    assert [found.reward for found in verdicts] == [1.0, 1.0]
    assert not any(found.flags for found in verdicts)


@BACKENDS
async def test_a_step_below_its_threshold_is_the_last(tmp_path: Path, backend: str) -> None:
    toml = '[[steps]]\nname = "one"\nmin_reward = 1.0\n[[steps]]\nname = "two"\n'
    _, verdicts = await run(make(tmp_path, toml), tmp_path, here(backend), {"one": "echo no > out.txt"})
    assert [found.reward for found in verdicts] == [0.5]


async def test_a_harness_that_gives_up_is_scored_and_not_started_again(tmp_path: Path) -> None:
    _, verdicts = await run(make(tmp_path), tmp_path, here("bubblewrap"), {"one": "echo one > out.txt; exit 9"})
    assert [found.reward for found in verdicts] == [1.0]


async def test_a_setup_that_fails_is_no_verdict(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "steps/two/workdir").mkdir()
    (folder / "steps/two/workdir/setup.sh").write_text("echo no database >&2\nexit 3\n")
    with pytest.raises(VerifierError, match=r"step two: setup\.sh failed \(exited, 3\): no database"):
        await run(folder, tmp_path, here("bubblewrap"), {"one": "true"})


class Writer(Teacher):
    """Does what a step asks in one command, then ends."""

    def turn(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        self.asked += 1
        word = next(m.content for m in messages if m.role == "user").split("Write ")[1].split()[0]
        if messages[-1].role == "tool":
            return Message("assistant", "Done.")
        name, arguments = shell_call(tools, f"echo {word} > out.txt")
        return Message("assistant", tool_calls=(ToolCall("call_0", name, arguments),))


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_rollout_of_two_steps_is_one_recording_of_two_sessions(tmp_path: Path) -> None:
    make(tmp_path / "tasks")
    (task,) = taskset.load(tmp_path / "tasks")
    async with arena(tmp_path, Writer()) as place:
        row = await fill(slot(task), place)
        calls = await asyncio.to_thread(records.read, row["calls_path"], records.CALLS)
    assert (row["reward"], row["error_class"], row["complete"]) == (1.0, None, True)
    assert json.loads(row["reward_parts"]) == {"one": 1.0, "two": 1.0}
    assert (row["calls"], row["chains"]) == (4, 2)
    opened: list[dict[str, Any]] = [call for call in calls if call["parent_call"] is None]
    assert [("Write one" in call["messages_delta"], "Write two" in call["messages_delta"]) for call in opened] == [
        (True, False),
        (False, True),
    ]
