"""A slot filled over a cluster: real Claude Code, real proxy, real sidecars, a verifier in a pod of its own; in pods
that are processes, and in real containers."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from proxy_addons import records
from tasks import builtin
from tasks import harnesses
from tasks import taskset
from tasks.epoch import merge
from tasks.epoch import run_group
from tasks.kube import manifest
from tasks.kube.settings import Bounds
from tasks.rollout import fill
from tasks.rollout import recorded
from tasks.run import ROOT
from tasks.sandboxes import PROXY_URL
from tasks.slots import Slots
from tests.kube import scripts
from tests.tasks import test_mcp
from tests.tasks.arena import Teacher
from tests.tasks.arena import arena
from tests.tasks.arena import slot
from tests.tasks.kube.processes import real_pods
from tests.tasks.kube.support import settings
from training.child import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

KINDS = pytest.mark.parametrize("kind", ["mounted", "containers"])
HARNESS_IMAGE = settings().payloads["claude_code"]


@pytest.fixture
def task(tmp_path: Path) -> taskset.Task:
    builtin.generate(tmp_path / "tasks", 3, 6, 0)
    return next(t for t in taskset.load(tmp_path / "tasks") if t.kind == "read")


@pytest.fixture(autouse=True)
def port(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = free_port()
    monkeypatch.setattr(manifest, "PORT", chosen)
    monkeypatch.setattr("tasks.rollout.PROXY_URL", f"http://127.0.0.1:{chosen}")


def images() -> dict[str, dict[str, Path]]:
    return {HARNESS_IMAGE: dict(harnesses.load("claude_code").binds(ROOT / harnesses.INSTALL))}


async def test_a_solved_task_is_a_reward_and_a_whole_recording(tmp_path: Path, task: taskset.Task) -> None:
    async with (
        arena(tmp_path, Teacher()) as place,
        real_pods(tmp_path, images(), run="test", bounds=Bounds()) as (c, sandbox),
    ):
        there = replace(place, sandbox=sandbox)
        row = await fill(slot(task), there)
        assert recorded(place.folder, slot(task), place.tries) is not None
        calls = records.read(row["calls_path"], records.CALLS)
        assert c.requests["create", "jobs"] == 2, "the harness's pod and the verifier's"
    assert (row["reward"], row["error_class"], row["exit"], row["complete"]) == (1.0, None, "completed", True)
    assert (row["calls"], row["chains"], row["sandbox"]) == (3, 1, "kubernetes")
    assert [call["logprob_kind"] for call in calls] == ["scripted"] * 3
    assert not (place.scratch / row["rollout"]).exists()


@KINDS
async def test_the_same_records_as_in_a_local_sandbox(
    tmp_path: Path, task: taskset.Task, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    group = [replace(slot(task), rollout=replace(slot(task).rollout, sample=n)) for n in range(2)]
    async with (
        arena(tmp_path, Teacher()) as place,
        real_pods(tmp_path, images(), kind, run="test", bounds=Bounds()) as (_, sandbox),
    ):
        # One at a time: processes share the one port that pods have each for themselves.
        cluster = replace(place, sandbox=sandbox, folder=tmp_path / "cluster", slots=Slots(1))
        there = await run_group(group, cluster)
        monkeypatch.setattr("tasks.rollout.PROXY_URL", PROXY_URL)
        here = await run_group(group, replace(place, folder=tmp_path / "local"))
        rows = {name: merge(tmp_path / name, [group], place.tries) for name in ("cluster", "local")}
        calls = {
            name: [records.read(row["calls_path"], records.CALLS) for row in found] for name, found in rows.items()
        }
    assert there == here | {"ran": 2} and here["rewards"] == [1.0, 1.0]
    own = {"sandbox", "started_at", "ended_at", "timings", "calls_path", "reason", "verdict_reason"}
    for a, b in zip(rows["cluster"], rows["local"], strict=True):
        assert {k: v for k, v in a.items() if k not in own} == {k: v for k, v in b.items() if k not in own}
    tokens = ("prompt_delta_ids", "prompt_prefix_len", "sampled_ids", "sampled_logprobs", "finish")
    assert [[[call[k] for k in tokens] for call in each] for each in calls["cluster"]] == [
        [[call[k] for k in tokens] for call in each] for each in calls["local"]
    ]


async def test_a_tasks_mcp_server_runs_in_the_pod(tmp_path: Path) -> None:
    given = test_mcp.task(tmp_path / "tasks")
    policy = test_mcp.Asker(shell="Bash", key="command")
    async with (
        arena(tmp_path, policy) as place,
        real_pods(tmp_path, images(), run="test", bounds=Bounds()) as (_, sandbox),
    ):
        row = await fill(slot(given), replace(place, sandbox=sandbox))
        (given.environment / "stock.py").unlink()
        broken = await fill(
            replace(slot(given), rollout=slot(given).rollout.next_try()), replace(place, sandbox=sandbox)
        )
    assert (row["reward"], row["error_class"], row["exit"]) == (1.0, None, "completed"), row
    assert (broken["reward"], broken["error_class"]) == (None, "HarnessError"), broken
    assert "its MCP server stock did not start" in broken["reason"]


@KINDS
async def test_an_agent_over_its_memory_ends_as_in_a_local_sandbox(
    tmp_path: Path, task: taskset.Task, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Claude Code would be long about it: in too little memory it crawls."""
    glutton = SimpleNamespace(**vars(harnesses.load("claude_code")))
    glutton.command = lambda *_: ("python3", "-c", "bytearray(2**31)")
    fat = slot(replace(task, memory_mb=64), glutton)
    async with (
        arena(tmp_path, Teacher()) as place,
        real_pods(tmp_path, images(), kind, run="test", bounds=Bounds()) as (_, sandbox),
    ):
        there = await fill(fat, replace(place, sandbox=sandbox))
        monkeypatch.setattr("tasks.rollout.PROXY_URL", PROXY_URL)
        here = await fill(fat, replace(place, folder=tmp_path / "local"))
    same = ("try", "exit", "error_class", "reward", "calls")
    assert {key: there[key] for key in same} == {key: here[key] for key in same}
    assert (there["error_class"], there["reward"]) == ("InfrastructureError", None)
    assert "killed at the memory limit of 64 MB" in there["reason"]


async def test_a_pod_that_is_evicted_is_a_new_try_and_never_a_reward(tmp_path: Path, task: taskset.Task) -> None:
    async with (
        arena(tmp_path, Teacher()) as place,
        real_pods(tmp_path, images(), run="test", bounds=Bounds()) as (c, sandbox),
    ):
        c.script = scripts.in_turn(scripts.evicted(), c.script)
        row = await fill(slot(task), replace(place, sandbox=sandbox))
        first = records.read(str(place.folder / "rollouts" / f"{slot(task).rollout.id}.parquet"), records.ROLLOUTS)[0]
    assert (first["error_class"], first["reward"], first["exit"]) == ("InfrastructureError", None, "lost")
    assert "The node was low on resource: memory" in first["reason"]
    assert (row["try"], row["reward"]) == (1, 1.0), row


async def test_a_verifier_that_is_evicted_is_run_again_without_the_harness(tmp_path: Path, task: taskset.Task) -> None:
    async with (
        arena(tmp_path, Teacher()) as place,
        real_pods(tmp_path, images(), run="test", bounds=Bounds()) as (c, sandbox),
    ):
        c.script = scripts.in_turn(c.script, scripts.evicted(), c.script)
        row = await fill(slot(task), replace(place, sandbox=sandbox))
    assert (row["try"], row["reward"], row["error_class"]) == (0, 1.0, None)


async def test_an_image_that_is_not_there_is_told_and_owed_again(tmp_path: Path, task: taskset.Task) -> None:
    async with arena(tmp_path, Teacher()) as place, real_pods(tmp_path, run="test") as (c, sandbox):
        c.script = scripts.cannot_pull()
        row = await fill(slot(task), replace(place, sandbox=sandbox))
        assert recorded(place.folder, slot(task), place.tries) is None
    assert (row["try"], row["error_class"], row["reward"]) == (0, "ConfigError", None)
    assert "registry.test/task:1" in row["reason"] and "manifest unknown" in row["reason"]
