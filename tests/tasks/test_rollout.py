"""Slots filled for real: real sandbox, real proxy, real Claude Code, the scripted teacher as the policy."""

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy_addons import records
from tasks import builtin
from tasks import harnesses
from tasks import taskset
from tasks.rollout import calls_path
from tasks.rollout import fill
from tasks.rollout import recorded
from tasks.rollout import remove
from tasks.run import model_folder
from tasks.sandboxes import Outcome
from tests.tasks.arena import Teacher
from tests.tasks.arena import arena
from tests.tasks.arena import arena_of
from tests.tasks.arena import slot
from training.policy_server import running_policy_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def task(tmp_path: Path) -> taskset.Task:
    builtin.generate(tmp_path / "tasks", 3, 6, 0)
    return next(t for t in taskset.load(tmp_path / "tasks") if t.kind == "read")


async def test_a_solved_task_is_a_reward_and_a_whole_recording(tmp_path: Path, task: taskset.Task) -> None:
    async with arena(tmp_path, Teacher()) as place:
        row = await fill(slot(task), place)
        assert recorded(place.folder, slot(task), place.tries) == row | {"timings": row["timings"]}
        calls = records.read(row["calls_path"], records.CALLS)
    assert (row["reward"], row["error_class"], row["exit"], row["complete"]) == (1.0, None, "completed", True)
    assert (row["calls"], row["chains"]) == (3, 1)
    assert [call["logprob_kind"] for call in calls] == ["scripted"] * 3
    assert not (place.scratch / row["rollout"]).exists()


async def test_an_engine_that_fails_is_a_new_try_and_never_a_reward(tmp_path: Path, task: taskset.Task) -> None:
    async with arena(tmp_path, Teacher(failures=1)) as place:
        row = await fill(slot(task), place)
        first = records.read(str(place.folder / "rollouts" / f"{slot(task).rollout.id}.parquet"), records.ROLLOUTS)[0]
    assert (first["error_class"], first["reward"]) == ("InfrastructureError", None)
    assert "500" in first["reason"]
    assert (row["try"], row["reward"]) == (1, 1.0)


async def test_tries_that_all_fail_end_without_a_reward(tmp_path: Path, task: taskset.Task) -> None:
    async with arena(tmp_path, Teacher(failures=10**6)) as place:
        row = await fill(slot(task), place)
        assert recorded(place.folder, slot(task), place.tries) is None
    assert (row["try"], row["error_class"], row["reward"]) == (1, "InfrastructureError", None)


async def test_a_policy_server_killed_in_mid_call_is_a_new_try_and_never_a_reward(
    tmp_path: Path, task: taskset.Task
) -> None:
    model = model_folder("tiny")
    async with (
        running_policy_server("embedded", model, tmp_path / "policy.log", 8192) as policy,
        arena_of(policy.url, model, tmp_path) as place,
    ):
        assert policy.child
        engine = policy.child.process
        engine.send_signal(signal.SIGSTOP)  # so that the call is under way for as long as it takes to see it
        filling = asyncio.create_task(fill(slot(task), place))
        while not any("intent" in file.read_text() for file in (place.folder / "calls").glob(".*.ledger")):
            assert not filling.done()
            await asyncio.sleep(0.05)
        engine.kill()
        row = await filling
        first = records.read(str(place.folder / "rollouts" / f"{slot(task).rollout.id}.parquet"), records.ROLLOUTS)[0]
        assert recorded(place.folder, slot(task), place.tries) is None
    assert [(r["try"], r["error_class"], r["reward"]) for r in (first, row)] == [
        (0, "InfrastructureError", None),
        (1, "InfrastructureError", None),  # nobody has started it again
    ]
    assert first["calls"] == 1


async def test_a_rollout_that_is_out_of_tokens_is_scored_as_it_stands(tmp_path: Path, task: taskset.Task) -> None:
    async with arena(tmp_path, Teacher()) as place:
        row = await fill(slot(task), replace(place, limits=replace(place.limits, max_total_tokens=10)))
    assert (row["exit"], row["error_class"]) == ("out_of_tokens", "PolicyFailure")
    assert row["reason"] == "out of generated tokens (10)"
    assert row["reward"] == 0.0
    assert "out_of_tokens" in row["findings"]


class Silent:
    """A harness that ends well and never asks a model."""

    NAME = "silent"

    def __getattr__(self, name: str) -> Any:
        return getattr(harnesses.load("claude_code"), name)

    def command(self, instruction: str, base_url: str, key: str, model: str) -> tuple[str, ...]:
        return ("/bin/echo", "bye")

    def judge(self, outcome: Outcome) -> tuple[str, str]:
        return "completed", "bye"


async def test_o81_a_harness_that_never_called_the_model_has_no_reward(tmp_path: Path, task: taskset.Task) -> None:
    async with arena(tmp_path, Teacher()) as place:
        row = await fill(slot(task, Silent()), place)
    assert (row["error_class"], row["reward"], row["calls"]) == ("HarnessError", None, 0)
    assert "no model call" in row["reason"]
    assert "silent" in row["reason"]


class Curious(Silent):
    """Asks the model as if it knew no base URL, and then for what it may not have, with Python's own HTTP client."""

    NAME = "curious"

    def command(self, instruction: str, base_url: str, key: str, model: str) -> tuple[str, ...]:
        tool = {"name": "Bash", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}
        ask = {"max_tokens": 99, "messages": [{"role": "user", "content": instruction}], "tools": [tool]}
        lines = (
            "import urllib.request as r",
            f"print(r.urlopen('https://api.anthropic.com/v1/messages', {json.dumps(ask).encode()!r}).status)",
            "r.urlopen('https://elsewhere.example/')",
        )
        return ("/usr/bin/python3", "-c", "\n".join(lines))

    def judge(self, outcome: Outcome) -> tuple[str, str]:
        said = outcome.stdout_path.read_text() + outcome.stderr_path.read_text()
        return ("completed" if said.startswith("200") and "403" in said else "failed"), said[-500:]


async def test_what_a_sandbox_asks_for_goes_through_the_egress_port(tmp_path: Path, task: taskset.Task) -> None:
    task = replace(task, allow_hosts=("mirror.example",))
    async with arena(tmp_path, Teacher()) as place:
        row = await fill(slot(task, Curious()), place)
    assert (row["exit"], row["calls"], row["complete"]) == ("completed", 1, True), row["reason"]
    assert "egress_refused:elsewhere.example" in row["findings"]
    assert json.loads(row["finding_counts"])["egress_refused:elsewhere.example"] == 1


async def test_o49_a_verifier_without_a_verdict_is_no_zero(tmp_path: Path, task: taskset.Task) -> None:
    (task.tests / "test.sh").write_text("exit 0\n")
    async with arena(tmp_path, Teacher()) as place:
        row = await fill(slot(task), place)
    assert (row["error_class"], row["reward"]) == ("VerifierError", None)
    assert row["verdict_reason"]


async def test_o66_a_torn_recording_is_owed_again(tmp_path: Path, task: taskset.Task) -> None:
    async with arena(tmp_path, Teacher()) as place:
        row = await fill(slot(task), place)
        path = calls_path(place.folder, slot(task).rollout)
        path.write_bytes(path.read_bytes()[:-7])
        assert recorded(place.folder, slot(task), place.tries) is None
        again = await fill(slot(task), replace(place))
        assert recorded(place.folder, slot(task), place.tries) is not None
    assert row["rollout"] == again["rollout"]


def test_a_workspace_nested_deeper_than_python_recurses_is_removed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)  # as an agent does it: step by step, past the longest path that there can be
    for _ in range(3000):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(tmp_path)
    remove(tmp_path / "d")
    assert list(tmp_path.iterdir()) == []
    remove(tmp_path / "d")  # nothing there is no error
