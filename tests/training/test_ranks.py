"""Two data-parallel ranks (gloo, veRL's FSDP2 engine) make the optimizer step that one process makes."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any
from typing import get_args

import pytest
import torch

from tasks.run import ROOT
from tests.support.gradients import ADVANTAGES
from tests.support.gradients import distance
from tests.support.gradients import rows_of
from tests.support.policy import save_policy
from tests.support.ranks import do_cases
from training.job import Loss
from training.job import Weighting
from training.rows import Row

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

OTHERS: list[dict[str, Any]] = [
    {"kl_coef": 0.3, "entropy_coef": 0.2},
    {"old_policy": "recomputed", "rollout_is": "token", "rollout_rs": "token_k1", "rollout_rs_threshold": 1.7},
]


def cases(rows: list[Row], reference: Path) -> dict[str, dict[str, Any]]:
    """By name: settings, rows, and an advantage per rollout."""
    advantages = dict(zip(sorted({row.rollout for row in rows}), ADVANTAGES, strict=True))
    made: dict[str, dict[str, Any]] = {}
    for n, (loss, weighting) in enumerate(product(get_args(Loss), get_args(Weighting))):
        more = OTHERS[n % 2] | ({"reference_model": str(reference)} if n % 2 == 0 else {})
        for name, settings in (("plain", {}), ("more", more)):
            made[f"{loss} {weighting} {name}"] = {"settings": {"loss": loss, "weighting": weighting} | settings}
    assert len(rows) % 2 == 1  # so that one rank has a row less, and makes as many passes all the same
    made = {name: case | {"rows": [asdict(row) for row in rows]} for name, case in made.items()}
    # Case O55: all that is trained falls to one of them.
    made["one row"] = {"settings": {}, "rows": [asdict(rows[0])]}
    return {name: case | {"advantages": advantages} for name, case in made.items()}


def test_two_ranks_make_the_step_of_one(tmp_path: Path) -> None:
    rows = rows_of(save_policy(tmp_path / "policy"))
    wanted = cases(rows, save_policy(tmp_path / "reference", seed=1))
    (tmp_path / "cases.json").write_text(json.dumps(list(wanted.values())))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.ranks", str(tmp_path)],
            cwd=ROOT,
            env=os.environ
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},  # veRL reads them, whatever the group was opened with
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        ours = do_cases(tmp_path)
        said = [rank.communicate(timeout=500)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    theirs = torch.load(tmp_path / "found.pt", weights_only=True)
    for name, one, two in zip(wanted, ours, theirs, strict=True):
        assert distance(two["gradient"], one["gradient"]) < 1e-5, name
        numbers = {
            key: value for key, value in one["numbers"].items() if key not in ("off_policy", "logprob_agreement")
        }
        assert {key: two["numbers"][key] for key in numbers} == pytest.approx(numbers, rel=1e-4, abs=1e-6), name
