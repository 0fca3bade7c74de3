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
from tests.support.epochs import record
from tests.support.epochs import train
from tests.support.policy import save_policy
from training.job import TrainJob
from training.job import TrainSettings
from training.main_ppo import check
from training.run_epoch import run_epoch

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

RANKS = {"trainer": "main_ppo", "processes": 2}
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
    base = save_policy(tmp_path / "base")
    older = save_policy(tmp_path / "older", seed=1)  # so that ratios are not 1
    before = load_file(base / "model.safetensors")
    resumes: list[str | None] = [None, None]
    for epoch in (1, 2):
        recorded = record(tmp_path, older, epoch, [1.0, 0.0, 0.5])
        job = TrainJob(
            **recorded,
            base_model=str(base),
            resume=resumes[0],
            seed=7,
            checkpoint_dir=str(tmp_path / "ours"),
            result=str(tmp_path / "ours.json"),
            settings=TrainSettings(**OBJECTIVE),
        )
        ours = run_epoch(job)
        if epoch == 2:
            _kill_one_that_has_begun(tmp_path, recorded, resumes[1])
            assert [path.name for path in (tmp_path / "theirs").glob("epoch-*")] == ["epoch-0001"]
        theirs = train(
            tmp_path, recorded, tmp_path / "theirs", resumes[1], **OBJECTIVE, trainer="main_ppo", processes=2
        )

        assert theirs.keys() == ours.keys()
        told = ("grad_norm", "pg_loss", "ppo_kl", "clip_fraction", "entropy_estimate", "reference_kl", "entropy")
        assert [theirs[name] for name in told] == pytest.approx([ours[name] for name in told], rel=1e-4, abs=1e-6)
        assert theirs["logprob_agreement"] == pytest.approx(ours["logprob_agreement"], rel=1e-4)
        one, other = (load_file(Path(result["hf_path"]) / "model.safetensors") for result in (ours, theirs))
        assert _length(one, other) < 1e-3 * _length(one, before)
        assert not _of_ray()
        resumes = [ours["checkpoint"], theirs["checkpoint"]]


def _kill_one_that_has_begun(folder: Path, recorded: dict[str, Any], resume: str | None) -> None:
    """Start the job of `recorded` in `folder`/theirs, kill it when its Ray stands, and wait until that is gone too."""
    job = json.loads((folder / "job.json").read_text()) | recorded | {"resume": resume}
    (folder / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "training.run_epoch", str(folder / "job.json")]
    with subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        while not any("raylet" in each.name() for each in _of_ray()):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    while _of_ray():
        time.sleep(0.1)


def _of_ray() -> list[psutil.Process]:
    """Processes of a Ray that an update started."""
    return [p for p in psutil.process_iter(["cmdline"]) if "openforge-ray-" in " ".join(p.info["cmdline"] or [])]


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
