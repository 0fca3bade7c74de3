"""veRL's own trainer on Ray makes the steps that our loop makes, and goes on from its checkpoint after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from proxy_addons.errors import ConfigError
from tests.support.calls import Recording
from tests.support.epochs import record
from tests.support.epochs import train
from tests.support.epochs import write_epoch
from tests.support.policy import save_policy
from tests.support.seeing import recorded as seen
from tests.support.seeing import save_seeing_policy
from training.job import TrainJob
from training.job import TrainSettings
from training.main_ppo import check
from training.main_ppo import ray_namespace
from training.run_epoch import run_epoch

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

NUMBERS = {
    *("rows", "rollouts", "trained_tokens", "optimizer_steps", "refused_steps", "logprob_agreement", "off_policy"),
    *("grad_norm", "pg_loss", "ppo_kl", "clip_fraction", "entropy_estimate", "reference_kl", "entropy"),
}
OBJECTIVE: dict[str, Any] = {
    "kl_coef": 0.1,
    "entropy_coef": 0.1,
    "weighting": "rollout",
    "device": "cpu",
    "threads": 1,
    "learning_rate": 1e-2,
    "weight_decay": 0.1,
}


def test_it_makes_our_steps_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    save_policy(tmp_path / "base")
    older = save_policy(tmp_path / "older", seed=1)  # so that ratios are not 1
    resumes: list[str | None] = [None, None]
    for epoch in (1, 2):
        recorded = record(tmp_path, older, epoch, [1.0, 0.0, 0.5])
        if epoch == 2:
            _kill_one_that_has_begun(tmp_path, recorded, resumes[1])
            assert [path.name for path in (tmp_path / "theirs").glob("epoch-*")] == ["epoch-0001"]
        resumes = both(tmp_path, recorded, resumes, OBJECTIVE)


def test_an_adapters_rows_are_scored_before_the_first_step(tmp_path: Path) -> None:
    """Of two temperatures: some are rejected, with another reference; then all; then none, in bfloat16."""
    save_policy(tmp_path / "base")
    older, other = save_policy(tmp_path / "older", seed=1), save_policy(tmp_path / "other", seed=2)
    adapter = OBJECTIVE | {"lora_rank": 4, "mini_batches": 2, "ppo_epochs": 2}
    scored = {"old_policy": "recomputed", "rollout_is": "token", "reference_model": str(other)}
    resumes: list[str | None] = [None, None]
    for epoch, more, left, near in (
        (1, scored | {"rollout_rs": "token_k1", "rollout_rs_threshold": 1.05}, range(1, 20), 1e-4),
        (2, {"rollout_rs": "seq_max_k2", "rollout_rs_threshold": 1e-9}, [0], 1e-4),
        (3, {"dtype": "bfloat16"}, [40], 1e-2),
    ):
        recorded = record(tmp_path, older, epoch, [1.0, 0.0, 0.5, 1.0, 0.0], tasks="ab", temperature=0.7)
        resumes = both(tmp_path, recorded, resumes, adapter | more, near)
        result = json.loads((tmp_path / "result.json").read_text())
        assert result["trained_tokens"] in left
        assert result["optimizer_steps"] == (4 if result["rows"] else 0)


def test_a_policy_that_sees(tmp_path: Path) -> None:
    """Two rollouts of two images each and as many tokens, and one without."""
    base = save_seeing_policy(tmp_path / "base")
    blind = Recording(2)
    blind.call(None, [5, 6, 7], [8, 9])
    recorded = write_epoch(tmp_path, [*(seen(base, tmp_path / "images", n) for n in range(2)), blind], [1.0, 0.0, 0.5])
    both(tmp_path, recorded, [None, None], OBJECTIVE | {"ppo_epochs": 2})


def both(
    folder: Path, recorded: dict[str, Any], resumes: list[str | None], settings: dict[str, Any], near: float = 1e-4
) -> list[str | None]:
    """Do the job on `folder`/base by our loop and by veRL's trainer on two ranks, and see that numbers and weights
    agree; returns the checkpoints."""
    job = TrainJob(
        **recorded,
        base_model=str(folder / "base"),
        resume=resumes[0],
        seed=7,
        checkpoint_dir=str(folder / "ours"),
        result=str(folder / "ours.json"),
        settings=TrainSettings(**settings),
    )
    ours = run_epoch(job)
    theirs = train(folder, recorded, folder / "theirs", resumes[1], **settings, trainer="main_ppo", processes=2)
    assert not _of_ray(folder)
    assert theirs.keys() == ours.keys()
    for name in ours.keys() & NUMBERS:
        wanted = ours[name] if ours[name] is None else pytest.approx(ours[name], rel=near, abs=near / 100)
        assert theirs[name] == wanted, name
    before, one, other = (
        load_file(place / "model.safetensors")
        for place in (folder / "base", Path(ours["hf_path"]), Path(theirs["hf_path"]))
    )
    assert _length(one, other) < max(1e-3, near) * _length(one, before)
    return [ours["checkpoint"], theirs["checkpoint"]]


def _kill_one_that_has_begun(folder: Path, recorded: dict[str, Any], resume: str | None) -> None:
    """Start the job of `recorded` in `folder`/theirs, kill it when its Ray stands, and wait until that is gone too."""
    job = json.loads((folder / "job.json").read_text()) | recorded | {"resume": resume}
    (folder / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "training.run_epoch", str(folder / "job.json")]
    with subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        while not any("raylet" in each.name() for each in _of_ray(folder)):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    while _of_ray(folder):
        time.sleep(0.1)


def _of_ray(folder: Path) -> list[psutil.Process]:
    """Processes of the Ray that an update of `folder`/theirs started; another test's may run beside it."""
    name = ray_namespace(folder / "theirs")
    return [p for p in psutil.process_iter(["cmdline"]) if name in " ".join(p.info["cmdline"] or [])]


def _length(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return float(torch.cat([(one[name] - other[name]).flatten() for name in one]).norm())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nodes": 2}, "nodes: 2 machines need a Ray cluster; start ray on them and set RAY_ADDRESS=HOST:PORT"),
        ({"strategy": "megatron", "dtype": "bfloat16"}, "strategy: 'megatron' needs megatron-core"),
    ],
)
def test_what_is_not_there_is_said(
    settings: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=message):
        check(TrainSettings(trainer="main_ppo", **settings), save_policy(tmp_path / "base"))


def test_images_are_not_for_megatron(tmp_path: Path) -> None:
    settings = TrainSettings(trainer="main_ppo", strategy="megatron", dtype="bfloat16")
    with pytest.raises(ConfigError, match="base sees images, which megatron is not given here; use fsdp2"):
        check(settings, save_seeing_policy(tmp_path / "base"))
