"""Harnesses that know no base URL: real ones, with their built-in provider, in a sandbox, through the egress port."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy_addons import records
from tasks import builtin
from tasks import taskset
from tasks.rollout import fill
from tests.tasks.arena import Teacher
from tests.tasks.arena import arena
from tests.tasks.arena import slot
from tests.tasks.harnesses.real import installed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

DIALECT = {"claude_code": "anthropic_messages", "codex": "openai_responses"}


class WithoutBaseUrl:
    """A harness of ours as if it had no setting for where the model is."""

    def __init__(self, harness: Any) -> None:
        self._harness = harness

    def __getattr__(self, name: str) -> Any:
        return getattr(self._harness, name)

    def prepare(self, home: Path, base_url: str, key: str, model: str) -> None:
        self._harness.prepare(home, base_url, key, model)
        config = home / ".codex/config.toml"
        if config.exists():
            text = config.read_text().split("[model_providers.policy]")[0]
            config.write_text(text.replace('model_provider = "policy"', 'model_provider = "openai"'))

    def env(self, base_url: str, key: str, model: str) -> dict[str, str]:
        env = self._harness.env(base_url, key, model)
        env.pop("ANTHROPIC_BASE_URL", None)
        return env | {"CODEX_API_KEY": "sk-not-the-rollouts"}


@pytest.mark.parametrize("name", DIALECT)
async def test_solves_a_task_with_its_built_in_provider(name: str, tmp_path: Path) -> None:
    harness = WithoutBaseUrl(installed(name))
    builtin.generate(tmp_path / "tasks", 3, 6, 0)
    task = next(t for t in taskset.load(tmp_path / "tasks") if t.kind == "read")
    task = replace(task, allow_hosts=("mirror.example",))
    async with arena(tmp_path, Teacher()) as place:
        row = await fill(slot(task, harness), place)
    calls = records.read(row["calls_path"], records.CALLS)
    log = (tmp_path / "proxy.log").read_text()
    assert (row["exit"], row["reward"], row["complete"]) == ("completed", 1.0, True), (row, log)
    assert {call["dialect"] for call in calls} == {DIALECT[name]}
    assert (row["calls"], row["chains"]) == (3, 1), row
    assert "sk-not-the-rollouts" not in json.dumps(calls, default=str) + log
