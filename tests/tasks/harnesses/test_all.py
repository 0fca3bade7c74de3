"""Every shell harness but the two of `make test`, for real: sandbox, recording proxy, scripted teacher, verifier, rows.

`make test-harnesses` installs them and runs this; where they are not installed it is skipped.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from proxy_addons import records
from tasks import builtin
from tasks import harnesses
from tasks import taskset
from tasks.rollout import fill
from tests.tasks.arena import Teacher
from tests.tasks.arena import arena
from tests.tasks.arena import slot
from tests.tasks.harnesses.real import installed
from training.rows import build_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

DIALECT = {
    "gemini_cli": "gemini",
    "mini_swe_agent": "openai_chat",
    "openclaw": "openai_responses",
    "opencode": "openai_chat",
    "openhands": "openai_chat",
    "qwen_code": "openai_chat",
}


def test_none_is_forgotten() -> None:
    assert {"claude_code", "codex", "browser", *DIALECT} == set(harnesses.NAMES)


@pytest.mark.parametrize("name", DIALECT)
async def test_solves_a_task_and_is_recorded_as_one_chain_of_sampled_tokens(name: str, tmp_path: Path) -> None:
    harness = installed(name)
    builtin.generate(tmp_path / "tasks", 3, 6, 0)
    task = replace(next(t for t in taskset.load(tmp_path / "tasks") if t.kind == "read"), agent_timeout_s=200.0)
    async with arena(tmp_path, Teacher(), max_model_len=200_000, timeout_s=200.0) as place:
        row = await fill(slot(task, harness), place)
    calls = records.read(row["calls_path"], records.CALLS)
    said = [(call["status"], call["findings"], call["messages_delta"][-400:]) for call in calls]
    assert (row["exit"], row["reward"], row["complete"]) == ("completed", 1.0, True), (row, said)
    assert {call["dialect"] for call in calls} == {DIALECT[name]}
    assert (row["calls"], row["chains"]) == (3, 1), said
    rows, report = build_rows(calls, max_row_tokens=200_000, need_logprobs=True)
    assert report.refused == {}
    assert sum(r.trained_tokens for r in rows) == sum(len(call["sampled_ids"]) for call in calls)
    assert report.prefix_breaks == 0, said
