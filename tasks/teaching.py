"""Learning from a teacher's rollouts: which ones (those that succeeded, a few per task, no two alike), and the fit."""

import json
from collections import Counter
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from proxy_addons.packing import read_calls
from tasks.curate.alike import Index
from tasks.curate.alike import pieces
from tasks.report import is_scored
from tasks.report import last_tries
from tasks.report import write_text
from tasks.update import run_module
from training.job import SftJob

Row = Mapping[str, Any]


def choose(
    tries: Sequence[Row], said: Callable[[Row], str], *, min_reward: float, keep: int, alike: float
) -> tuple[list[Row], Counter[str]]:
    """The rollouts to learn from, and why how many others are not: no verdict or an incomplete recording
    (`not_scored`), `failed`, `alike` (what was `said` is like what another rollout said), or `enough` of its task and
    harness. The best of a task come first, in a task's order of samples."""
    kept: list[Row] = []
    dropped: Counter[str] = Counter()
    index, count = Index(alike), Counter[tuple[str, str]]()
    for row in sorted(last_tries(tries), key=lambda row: (row["task"], -(row["reward"] or 0.0), row["sample"])):
        place = (row["task"], row["harness"])
        if not is_scored(row) or not row["complete"]:
            dropped["not_scored"] += 1
        elif row["reward"] < min_reward:
            dropped["failed"] += 1
        elif count[place] >= keep:
            dropped["enough"] += 1
        elif index.nearest(text := pieces(said(row))):
            dropped["alike"] += 1
        else:
            index.add(row["rollout"], text)
            count[place] += 1
            kept.append(row)
    return kept, dropped


def reader(model: Path) -> Callable[[Row], str]:
    """From a rollout to all that was sampled in it, as text by the tokenizer of `model`."""
    tokenizer = AutoTokenizer.from_pretrained(str(model), local_files_only=True)

    def said(row: Row) -> str:
        calls = read_calls(row["calls_path"], ["call", "sampled_ids"])
        ordered = sorted(calls, key=lambda call: call["call"])
        return "\n".join(str(tokenizer.decode(call["sampled_ids"] or [])) for call in ordered)

    return said


async def fit(job: SftJob, log: Path) -> dict[str, Any]:
    """What `training.run_sft`, in a process of its own, says of the job. Raises what it raises."""
    file = Path(job.result).with_name("sft-job.json")
    write_text(file, job.model_dump_json(indent=1))
    await run_module("training.run_sft", file, log)
    result: dict[str, Any] = json.loads(Path(job.result).read_text())
    return result
