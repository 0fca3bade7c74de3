"""The trainer as a process that stays: `python -m training.resident`.

It reads the paths of JOB.json files from its standard input, one per line, does each as `training.run_epoch` does, and
answers with a line that holds the exit code (`job.EXIT_CODES`). veRL is imported and the model is loaded once: a job
that goes on from the checkpoint that the last one left finds the learner as it was saved. Any other job, and any job
after a failure, starts from its checkpoint, as a process of its own would, with the same weights bit for bit.

A `job.ServeJob` is done as soon as the policy is served, and it is served for as long as the process runs.
"""

import os
import sys
from functools import partial
from typing import Annotated
from typing import Any

from pydantic import Discriminator
from pydantic import RootModel
from pydantic import Tag

from training import standing
from training.front import Front
from training.job import ServeJob
from training.job import TrainJob
from training.process import run_job
from training.run_epoch import InHand
from training.run_epoch import run_epoch


def _kind(job: Any) -> str:
    return "serve" if isinstance(job, dict) and "port" in job else "train"


class Job(
    RootModel[Annotated[Annotated[ServeJob, Tag("serve")] | Annotated[TrainJob, Tag("train")], Discriminator(_kind)]]
):
    """What a line names."""


def _do(in_hand: InHand, job: Job) -> None:
    if isinstance(job.root, ServeJob):
        in_hand.front = Front(job.root)
        in_hand.front.open()
    else:
        run_epoch(job.root, in_hand)


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    in_hand = InHand()
    try:
        for line in sys.stdin:
            code = run_job([line.strip()], Job, partial(_do, in_hand))
            print(code, file=answers, flush=True)
    finally:
        standing.end()


if __name__ == "__main__":
    main()
