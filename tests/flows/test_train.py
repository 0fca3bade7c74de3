"""The loop, whole and real: Prefect server, both harnesses, mitmproxy, the embedded engine, veRL.

One run of two epochs is killed while it writes its first checkpoint, taken up, killed in the rollouts of its second
epoch and taken up again, so that one pass shows both that the loop closes and that nothing done is done twice.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect.settings import get_current_settings

from flows.config import RunConfig
from flows.train import openforge
from proxy_addons import records
from proxy_addons.errors import ConfigError
from proxy_addons.packing import read_calls
from tasks.run import MODELS
from tasks.run import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("prefect_server")]

CONFIG: dict[str, Any] = {
    "run": "e2e",
    "epochs": 2,
    "tasks_per_epoch": 4,
    "group_size": 4,
    "heldout_tasks": 2,
    "heldout_samples": 2,
    "concurrency": 2,
}
WANTED = CONFIG["tasks_per_epoch"] * CONFIG["group_size"]


def run_config(runs: Path, **given: Any) -> RunConfig:
    return RunConfig.model_validate(CONFIG | {"runs_dir": str(runs)} | given)


def kill_when(runs: Path, happened: Callable[[], bool]) -> None:
    """Run the flow in a process of its own and kill that process as soon as `happened`; its children must die too."""
    code = "import asyncio, json, sys; from flows.train import openforge; "
    code += "asyncio.run(openforge(json.loads(sys.argv[1])))"
    config = json.dumps(CONFIG | {"runs_dir": str(runs)})
    # The test's server is a setting of this process alone: a child has to be told of it.
    environment = os.environ | get_current_settings().to_environment_variables(exclude_unset=True)
    process = subprocess.Popen([sys.executable, "-c", code, config], cwd=ROOT, env=environment, start_new_session=True)
    deadline = time.monotonic() + 400
    while not happened():
        assert process.poll() is None, "the flow ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive, f"left behind by a killed flow: {alive}"


@pytest.fixture(scope="module")
def killed_in_training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was killed while its trainer wrote the first checkpoint."""
    folder = tmp_path_factory.mktemp("runs") / "e2e"
    kill_when(folder.parent, (folder / "checkpoints").exists)
    assert not (folder / "epoch-001" / "train.json").exists()
    return folder


@pytest.fixture(scope="module")
def killed_in_rollouts(killed_in_training: Path) -> tuple[Path, int]:
    """The run, killed again in the rollouts of its second epoch, and how many of those were recorded by then."""
    rollouts = killed_in_training / "epoch-002" / "rollouts"
    kill_when(killed_in_training.parent, lambda: len(list(rollouts.glob("*.parquet"))) >= 3)
    return killed_in_training, len(list(rollouts.glob("*.parquet")))


@pytest.fixture(scope="module")
def finished(killed_in_rollouts: tuple[Path, int]) -> Path:
    folder, _ = killed_in_rollouts
    (folder / "epoch-002" / "rollouts" / "torn.parquet").write_bytes(b"PAR1")
    report = asyncio.run(openforge(run_config(folder.parent)))
    assert Path(report).exists()
    return folder


def stages(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "stages.jsonl").read_text().splitlines()]
    return [line for line in lines if line["stage"] == name]


def test_rollouts_killed_in_the_second_epoch_run_only_as_far_as_they_are_owed(
    killed_in_rollouts: tuple[Path, int], finished: Path
) -> None:
    _, done = killed_in_rollouts
    assert 3 <= done < WANTED
    resumed = stages(finished, "rollout")[-1]
    assert (resumed["epoch"], resumed["resumed"], resumed["owed"]) == (2, done, WANTED - done)
    assert stages(finished, "evaluate_before")[-1]["owed"] == 0


def test_a_training_killed_while_it_wrote_its_checkpoint_is_done_again_without_rollouts(finished: Path) -> None:
    rollouts = [(line["resumed"], line["owed"]) for line in stages(finished, "rollout") if line["epoch"] == 1]
    assert rollouts == [(0, WANTED), (WANTED, 0)]
    assert [line["epoch"] for line in stages(finished, "train")] == [1, 2]
    assert not list((finished / "checkpoints").glob(".tmp-*"))


def test_every_trained_token_is_one_that_the_engine_sampled(finished: Path) -> None:
    rollouts = records.read(str(finished / "epoch-001" / "rollouts.parquet"), records.ROLLOUTS)
    result = json.loads((finished / "epoch-001" / "train.json").read_text())
    assert len({row["rollout"] for row in rollouts}) == len(rollouts)
    assert {row["harness"] for row in rollouts} == {"claude_code", "codex"}
    sampled, unanswered = 0, 0
    for row in rollouts:
        assert row["complete"]
        calls = read_calls(row["calls_path"])
        for call in calls:
            if call["status"] == "ok":
                assert len(call["sampled_ids"]) == len(call["sampled_logprobs"]) == call["usage_completion"]
                assert call["weight_version"] == 0
            else:  # a policy that wanders may use its calls up; the one beyond them was not sampled
                assert call["findings"] == ["out_of_calls"]
                unanswered += 1
        if row["reward"] is not None:
            sampled += sum(len(call["sampled_ids"]) for call in calls if call["status"] == "ok")
    if not result["skipped"]:
        assert result["trained_tokens"] <= sampled
        assert result["logprob_agreement"]["mean"] <= 0.02
        assert sum(result["refused"].values()) == result["refused"].get("error", 0) <= unanswered


def test_append_only_histories_are_one_row_per_agent(finished: Path) -> None:
    rollouts = records.read(str(finished / "epoch-001" / "rollouts.parquet"), records.ROLLOUTS)
    assert [row["chains"] for row in rollouts if row["exit"] == "completed"] == [1] * sum(
        row["exit"] == "completed" for row in rollouts
    )


def test_the_summary_says_what_happened(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["run"] == "e2e"
    assert summary["heldout_before"]["n"] == summary["heldout_after"]["n"] == 4
    assert summary["rollouts"] == 2 * WANTED + 8
    assert summary["resumed_rollouts"] > 0
    assert summary["infra_failures"] == 0
    assert {"serve", "rollout", "train"} <= set(summary["wall_s"])
    assert (finished / "report.html").read_text().startswith("<!doctype html>")


def test_nothing_holds_a_rollouts_key(finished: Path) -> None:
    assert not list((ROOT / ".openforge" / "scratch" / "e2e").glob("*"))


def test_the_same_name_with_other_settings_is_refused(finished: Path) -> None:
    with pytest.raises(ConfigError, match="seed was 0, now 5"):
        asyncio.run(openforge(run_config(finished.parent, seed=5)))


def test_a_missing_model_names_what_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no model"):
        asyncio.run(openforge(run_config(tmp_path, model=str(tmp_path / "none"))))
    assert MODELS.is_dir()


def test_a_missing_reference_model_is_said_before_anything_starts(tmp_path: Path) -> None:
    training = {"kl_coef": 0.1, "reference_model": str(tmp_path / "none")}
    with pytest.raises(ConfigError, match=r"training\.reference_model: .*none holds no model"):
        asyncio.run(openforge(run_config(tmp_path, training=training)))
    assert not (tmp_path / "e2e").exists()
