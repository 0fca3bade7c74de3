"""One of several data-parallel ranks: `python -m tests.support.ranks FOLDER`, with RANK and WORLD_SIZE in its
environment. It does the cases in FOLDER/cases.json, and rank 0 leaves FOLDER/found.pt."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support.gradients import gradient_of_step
from tests.support.gradients import set_objective
from tests.support.policy import make_learner
from training.rows import Row


def do_cases(folder: Path) -> list[dict[str, Any]]:
    """Of each case, the gradient of its one optimizer step and what the learner reports of it."""
    learner = make_learner(folder / "policy", learning_rate=1e-9, clip_grad=1e9, micro_batch_tokens=32)
    found = []
    for case in json.loads((folder / "cases.json").read_text()):
        with pytest.MonkeyPatch.context() as patch:
            set_objective(learner, patch, **case["settings"])
            rows = [Row(**row) for row in case["rows"]]
            gradient = gradient_of_step(learner, rows, case["advantages"], patch)
            found.append({"gradient": gradient, "numbers": learner.update(rows, case["advantages"], seed=0, step=0)})
    return found


if __name__ == "__main__":
    place = Path(sys.argv[1])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=rank, world_size=world)
    result = do_cases(place)
    if rank == 0:
        torch.save(result, place / "found.pt")
    dist.barrier()
