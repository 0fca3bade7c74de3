"""Mode `async`: first the loop alone, then the flow with Prefect, proxy and records real and scripts for the rest."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.filters import FlowRunFilterName
from prefect.settings import get_current_settings

from bench.scripted_run import Update
from bench.scripted_run import run
from bench.scripted_run import write_task
from flows.overlap import overlap
from proxy_addons import records
from proxy_addons.errors import ConfigError
from proxy_addons.packing import read_calls
from tasks.run import ROOT
from tasks.slots import Slots


class Loop:
    """A run whose rollouts and updates are sleeps. `skips` are the epochs that train nothing."""

    def __init__(self, folder: Path, epochs: int, skips: frozenset[int] = frozenset(), seed: int = 0) -> None:
        self.folder, self.epochs, self.skips = folder, epochs, skips
        self.rng = random.Random(seed)
        self.trained: list[int] = []
        self.began: dict[int, int] = {}
        self.events: list[str] = []

    def version(self, epoch: int) -> int:
        return max((each for each in range(1, epoch + 1) if each not in self.skips), default=0)

    async def collect(self, epoch: int) -> None:
        assert epoch not in self.began
        self.began[epoch] = self.version(max(self.trained, default=0))
        try:
            await asyncio.sleep(self.rng.random() / 50)
            self.events.append(f"collected {epoch}")
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)  # as a sandbox that is being removed
            self.events.append(f"cancelled {epoch}")
            raise

    async def learn(self, epoch: int) -> dict[str, Any]:
        assert f"collected {epoch}" in self.events
        await asyncio.sleep(self.rng.random() / 50)
        self.trained.append(epoch)
        return {}

    async def run(self, max_staleness: int, **parts: Any) -> None:
        epochs = range(1, self.epochs + 1)
        given = {"collect": self.collect, "learn": self.learn} | parts
        await overlap(epochs, max_staleness, self.version, run_folder=self.folder, slots=Slots(1), **given)


@pytest.mark.parametrize("max_staleness", [0, 1, 2])
@pytest.mark.parametrize("skips", [frozenset(), frozenset({2, 3, 6})])
async def test_no_epoch_trains_rollouts_that_began_more_versions_ago(
    tmp_path: Path, max_staleness: int, skips: frozenset[int]
) -> None:
    for seed in range(5):
        loop = Loop(tmp_path, 8, skips, seed)
        await loop.run(max_staleness)
        behind = [loop.version(epoch - 1) - loop.began[epoch] for epoch in range(1, 9)]
        assert max(behind) <= max_staleness
        assert loop.trained == list(range(1, 9))
        if not skips:
            assert behind == [min(epoch - 1, max_staleness) for epoch in range(1, 9)]


async def test_a_failing_update_ends_the_rollouts_under_way_before_it_is_told(tmp_path: Path) -> None:
    loop = Loop(tmp_path, 5)

    async def learn(epoch: int) -> dict[str, Any]:
        if epoch == 1:
            return await loop.learn(epoch)
        await asyncio.sleep(0.1)
        raise ConfigError("no room for a checkpoint")

    async def collect(epoch: int) -> None:
        await loop.collect(epoch)
        if epoch == 3:
            try:
                await asyncio.sleep(60)
            finally:
                loop.events.append("cleaned up 3")

    with pytest.raises(ConfigError, match="no room for a checkpoint"):
        await loop.run(2, learn=learn, collect=collect)
    assert "cleaned up 3" in loop.events
    assert set(loop.began) == {1, 2, 3, 4}
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_an_error_of_later_rollouts_is_told_when_the_update_under_way_is_done(tmp_path: Path) -> None:
    loop = Loop(tmp_path, 5)

    async def collect(epoch: int) -> None:
        if epoch == 2:
            raise ConfigError("all rollouts failed")
        await loop.collect(epoch)

    with pytest.raises(ConfigError, match="all rollouts failed"):
        await loop.run(1, collect=collect)
    assert loop.trained == [1]


async def test_waiting_is_measured(tmp_path: Path) -> None:
    slots = Slots(2)

    async def collect(epoch: int) -> None:
        async with slots.place(epoch):
            await asyncio.sleep(0.1)

    async def learn(epoch: int) -> dict[str, Any]:
        await asyncio.sleep(0.3)
        return {"staleness": {}}

    await overlap(range(1, 2), 1, lambda epoch: 0, collect, learn, tmp_path, slots)
    line = json.loads((tmp_path / "stages.jsonl").read_text())
    assert (line["stage"], line["epoch"], line["staleness"]) == ("overlap", 1, {})
    assert line["update_waited"] == pytest.approx(0.25, abs=0.1)
    assert line["slots_idle"] == pytest.approx(1 - 0.1 / (2 * 0.4), abs=0.1)


# --- the flow ---

EPOCHS, TASKS, SIZE = 4, 3, 3
SECONDS = {"quick": [0.2] * 3, "slow": [1.2] * 3, "uneven": [0.2, 0.3, 1.5]}


def flow(test: Any) -> Any:
    return pytest.mark.slow(pytest.mark.timeout(400)(test))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, prefect_server: None) -> dict[str, Any]:
    """The configuration that all runs here share. Every task is in every epoch."""
    folder = tmp_path_factory.mktemp("inputs")
    for name, seconds in SECONDS.items():
        write_task(folder / "tasks", name, seconds, [True, False, True])
    return {
        "epochs": EPOCHS,
        "tasks_per_epoch": TASKS,
        "group_size": SIZE,
        "concurrency": 2,
        "mode": "async",
        "tasks": str(folder / "tasks"),
    }


def epoch_rows(folder: Path, epoch: int) -> list[dict[str, Any]]:
    return records.read(str(folder / f"epoch-{epoch:03}" / "rollouts.parquet"), records.ROLLOUTS)


def trained(folder: Path, epoch: int) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / f"epoch-{epoch:03}" / "train.json").read_text())
    return result


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "stages.jsonl").read_text().splitlines()]
    return [line for line in found if line["stage"] == name]


def check_nothing_lost_none_double(folder: Path) -> None:
    for epoch in range(1, EPOCHS + 1):
        rows = epoch_rows(folder, epoch)
        assert Counter((row["task"], row["sample"]) for row in rows) == {
            (task, sample): 1 for task in SECONDS for sample in range(SIZE)
        }
        assert all(row["complete"] and row["reward"] is not None for row in rows)
        result = trained(folder, epoch)
        assert (result["rows"], result["refused"]) == (TASKS * SIZE, {})
        assert max(map(int, result["behind"])) <= 1
    assert [line["epoch"] for line in lines(folder, "overlap")] == list(range(1, EPOCHS + 1))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Any]) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    return asyncio.run(run({**inputs, "run": "async", "runs_dir": str(runs)}, Update(train_s=0.3)))


@flow
def test_every_epoch_trains_all_of_its_rollouts_once(finished: Path) -> None:
    check_nothing_lost_none_double(finished)


@flow
def test_rollouts_run_while_the_epoch_before_trains(finished: Path) -> None:
    for epoch in range(1, EPOCHS):
        _, ended = trained(finished, epoch)["time"]
        assert min(row["started_at"].timestamp() for row in epoch_rows(finished, epoch + 1)) < ended
        assert trained(finished, epoch + 1)["behind"]["1"] > 0


@flow
def test_weights_are_published_in_the_midst_of_rollouts_and_each_call_names_its_own(finished: Path) -> None:
    assert max(trained(finished, epoch)["versions_in_a_row"] for epoch in range(1, EPOCHS + 1)) == 2
    for epoch in range(1, EPOCHS + 1):
        for row in epoch_rows(finished, epoch):
            calls = read_calls(row["calls_path"])
            versions = [call["weight_version"] for call in calls]
            assert [call["status"] for call in calls] == ["ok"] * 3
            assert versions == sorted(versions)
            assert row["weight_version"] == versions[0]
            assert [call["weight_version_last"] for call in calls] == versions


@flow
def test_the_report_tells_staleness_and_waiting(finished: Path) -> None:
    for line in lines(finished, "overlap"):
        assert sum(line["staleness"].values()) == TASKS * SIZE
        assert 0 <= line["update_waited"] < 1
        assert 0 <= line["slots_idle"] < 1
    page = (finished / "report.html").read_text()
    assert "rollouts by versions behind" in page
    assert "waiting: update / places" in page


@flow
async def test_prefect_shows_updates_beside_the_next_rollouts(finished: Path) -> None:
    async with get_client() as client:
        (flow_run,) = [
            each
            for each in await client.read_flow_runs()
            if each.parameters.get("config", {}).get("run") == finished.name
        ]
        runs = await client.read_task_runs(flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[flow_run.name])))
    updates = {each.name: each for each in runs if each.name.startswith("train epoch")}
    groups = [each for each in runs if each.name.startswith("async-e002-")]
    assert (len(updates), len(groups)) == (EPOCHS, TASKS)
    first = updates["train epoch 1"]
    assert first.start_time and first.end_time
    assert any(each.start_time and each.start_time < first.end_time for each in groups)


def start(config: dict[str, Any], train_s: float) -> "subprocess.Popen[bytes]":
    """The same flow in a process of its own."""
    environment = os.environ | get_current_settings().to_environment_variables(exclude_unset=True)
    argument = json.dumps({"config": config, "train_s": train_s})
    command = [sys.executable, "-m", "bench.scripted_run", argument]
    return subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)


def kill_when(config: dict[str, Any], train_s: float, happened: Callable[[], bool]) -> None:
    process = start(config, train_s)
    try:
        deadline = time.monotonic() + 120
        while not happened():
            assert process.poll() is None, "the flow ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@flow
def test_killed_in_the_midst_of_both_halves_it_goes_on_from_its_files(tmp_path: Path, inputs: dict[str, Any]) -> None:
    config = {**inputs, "run": "killed", "runs_dir": str(tmp_path)}
    folder = tmp_path / "killed"

    def recorded(epoch: int) -> dict[str, Any]:
        rows = (folder / f"epoch-{epoch:03}" / "rollouts").glob("*.parquet")
        return {row.name: row.read_bytes() for row in rows if records.is_whole(str(row))}

    # Epoch 1 trains for long: epoch 2's rollouts are there in part, epoch 3's have not begun.
    kill_when(config, 60.0, lambda: len(recorded(1)) == TASKS * SIZE and len(recorded(2)) >= 2)
    before = recorded(1), recorded(2)
    assert not recorded(3)
    assert not (folder / "epoch-001" / "train.json").exists()

    # Epoch 2 trains or publishes, epoch 3 is under way.
    kill_when(config, 0.5, lambda: (folder / "epoch-001" / "train.json").exists() and len(recorded(3)) >= 1)
    half = recorded(3)
    assert recorded(2).items() >= before[1].items()

    asyncio.run(run(config, Update(train_s=0.2)))
    check_nothing_lost_none_double(folder)
    assert recorded(1) == before[0]
    assert recorded(2).items() >= before[1].items()
    assert recorded(3).items() >= half.items()


@flow
def test_a_failing_update_ends_the_run_with_its_line_and_one_that_trains_nothing_makes_nothing_too_old(
    tmp_path: Path, inputs: dict[str, Any]
) -> None:
    config = {**inputs, "run": "fails", "runs_dir": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"^training: epoch 2 was to fail; make it not$"):
        asyncio.run(run(config, Update(train_s=0.1, fails=2)))
    folder = tmp_path / "fails"
    kept = {file: file.read_bytes() for file in folder.glob("epoch-*/rollouts/*.parquet")}
    assert not list((ROOT / ".openforge" / "scratch" / "fails").glob("*"))
    assert not list(folder.glob("epoch-*/calls/.*.ledger"))
    assert len(kept) < EPOCHS * TASKS * SIZE
    asyncio.run(run(config, Update(train_s=0.1, skips=(2,))))
    check_nothing_lost_none_double(folder)
    assert trained(folder, 3)["weight_version"] == 1
    assert {file: file.read_bytes() for file in kept} == kept


@flow
def test_a_groups_slow_rollout_is_ended_and_counted_and_a_slow_task_keeps_its_share(
    tmp_path: Path, inputs: dict[str, Any]
) -> None:
    write_task(tmp_path / "tasks", "stuck", [0.1, 0.1, 300.0], [True, False, True])
    write_task(tmp_path / "tasks", "slow", [6.0] * 3, [True, False, True])
    write_task(tmp_path / "tasks", "quick", [0.1] * 3, [True, False, True])
    config = {**inputs, "run": "late", "runs_dir": str(tmp_path), "tasks": str(tmp_path / "tasks"), "epochs": 2}
    config |= {"group_deadline_s": 5.0, "concurrency": 9}
    folder = asyncio.run(run(config, Update(train_s=0.2)))
    voted: Counter[str] = Counter()
    for epoch in (1, 2):
        rows = epoch_rows(folder, epoch)
        (late,) = [row for row in rows if row["exit"] == "overdue"]
        assert (late["task"], late["sample"], late["reward"], late["error_class"]) == ("stuck", 2, None, None)
        assert late["reason"] == "ended: half of its group was done, and it was not 5 s later (group_deadline_s)"
        assert json.loads(late["finding_counts"]) == {"group_deadline": 1}
        assert len(read_calls(late["calls_path"])) == late["calls"] >= 1
        voted.update(row["task"] for row in rows if row["reward"] is not None)
        assert trained(folder, epoch)["refused"] == {}
    assert voted == {"slow": 6, "quick": 6, "stuck": 4}
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["findings"]["group_deadline"] == summary["unscored"] == 2
