"""What the real harnesses do when a rollout's model calls are used up: the proxy answers a stop, and they end.

They end by themselves, at once, and nothing that the proxy said in the policy's place is trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path

import pytest

from proxy_addons import records
from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from tasks import builtin
from tasks import taskset
from tasks.rollout import fill
from tasks.teacher import shell_call
from tests.tasks.arena import Teacher
from tests.tasks.arena import arena
from tests.tasks.arena import slot
from tests.tasks.harnesses.real import SHELL
from tests.tasks.harnesses.real import installed
from tests.tasks.harnesses.scripts import say
from training.rows import build_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MAX_CALLS = 3
# A turn without a tool call ends all of them but mini-swe-agent, which asks twice more.
MORE = {name: 3 if name == "mini_swe_agent" else 1 for name in SHELL}


@dataclass
class Endless(Teacher):
    """Never done, and never twice the same, so that no harness takes it for stuck."""

    def turn(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        self.asked += 1
        return say("", shell_call(tools, f"echo {self.asked} >> count.txt"))


@pytest.mark.parametrize("name", MORE)
async def test_a_harness_out_of_calls_ends_by_itself(name: str, tmp_path: Path) -> None:
    harness = installed(name)
    builtin.generate(tmp_path / "tasks", 1, 1, 0)
    task = replace(taskset.load(tmp_path / "tasks")[0], agent_timeout_s=200.0)
    policy = Endless()
    async with arena(tmp_path, policy, max_model_len=200_000, timeout_s=200.0) as place:
        place = replace(place, limits=replace(place.limits, max_calls=MAX_CALLS))
        row = await fill(slot(task, harness), place)
    calls = records.read(row["calls_path"], records.CALLS)
    # "retokenised": the policy of these tests samples every character as a token of its own.
    said = [(call["status"], call["http_status"], {*call["findings"]} - {"retokenised"}) for call in calls]
    assert (row["exit"], row["error_class"], row["complete"]) == ("out_of_calls", "PolicyFailure", True), (row, said)
    assert row["exit_code"] is not None and row["reward"] == 0.0, row
    assert said == [("ok", 200, set())] * MAX_CALLS + [("error", 200, {"out_of_calls"})] * MORE[name], said
    rows, report = build_rows(calls, max_row_tokens=200_000)
    assert policy.asked == MAX_CALLS and [row.calls for row in rows] == [(0, 1, 2)]
    assert report.trained_tokens == sum(len(ids) for _, ids in policy.served)
