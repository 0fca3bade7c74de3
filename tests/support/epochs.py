"""Jobs for `training.run_epoch`: recorded epochs on disk, and the process that trains on them."""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from proxy_addons import records
from tests.support.calls import Recording
from tests.support.policy import VOCAB
from tests.support.policy import hf_log_probs


def record(
    folder: Path, policy: Path, epoch: int, rewards: list[float | None], *, tasks: str = "t", temperature: float = 1.0
) -> dict[str, Any]:
    """Two-turn rollouts of `tasks` in turn, scored as the policy in `policy` would; returns what a job needs.
    `temperature` is that of every other one."""
    rng, recordings = random.Random(epoch), []
    for sample in range(len(rewards)):
        rec, warmth = Recording(sample, tasks[sample % len(tasks)], epoch), 1.0 if sample % 2 else temperature
        prompt = [rng.randrange(VOCAB) for _ in range(8)]
        for turn in range(2):
            delta = prompt if turn == 0 else [rng.randrange(VOCAB) for _ in range(3)]
            sampled = [rng.randrange(VOCAB) for _ in range(4)]
            ids = [*(rec.texts[-1] if turn else []), *delta, *sampled]
            scores = hf_log_probs(policy, ids, warmth)[-4:]
            parent = turn - 1 if turn else None
            sampling = json.dumps({"temperature": warmth})
            rec.call(parent, delta, sampled, sampled_logprobs=scores, weight_version=epoch - 1, sampling=sampling)
        recordings.append(rec)
    return write_epoch(folder, recordings, rewards, epoch)


def write_epoch(
    folder: Path, recordings: list[Recording], rewards: Sequence[float | None], epoch: int = 1
) -> dict[str, Any]:
    """The rollouts on disk, their images in `folder`/images; returns what a job needs."""
    paths = [str(folder / f"{epoch}-{sample}.parquet") for sample in range(len(recordings))]
    for rec, path in zip(recordings, paths, strict=True):
        records.write(path, records.table(rec.calls, records.CALLS))
    table = str(folder / f"rollouts-{epoch}.parquet")
    ended = [rec.ended(reward) for rec, reward in zip(recordings, rewards, strict=True)]
    records.write(table, records.table(ended, records.ROLLOUTS))
    return {"calls": paths, "rollouts": table, "epoch": epoch, "weight_version": epoch - 1}


def run_job(folder: Path, job: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    file = folder / "job.json"
    file.write_text(json.dumps(job))
    return subprocess.run(
        [sys.executable, "-m", "training.run_epoch", str(file)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )


def train(
    folder: Path, recorded: dict[str, Any], checkpoints: Path, resume: str | None, **settings: Any
) -> dict[str, Any]:
    """Do the job in its own process; returns the result."""
    settings = {
        "threads": 1,
        "device": "cpu",
        "learning_rate": 1e-2,
        "weight_decay": 0.1,
        "mini_batches": 1,
        **settings,
    }
    job = recorded | {
        "base_model": str(folder / "base"),
        "resume": resume,
        "seed": 7,
        "checkpoint_dir": str(checkpoints),
        "result": str(folder / "result.json"),
        "settings": settings,
    }
    done = run_job(folder, job)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def weights(result: dict[str, Any]) -> str:
    """A hash of the exported weights."""
    tensors = load_file(Path(result["hf_path"]) / "model.safetensors")
    return hashlib.sha256(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))).hexdigest()
