"""`make bench-train`: what an update costs; the numbers go to bench/out/train.json.

The rows are of real harnesses (`bench.long_rollouts`), the model is models/tiny. In one run, each in a process of its
own, taking turns:

    ours    the learner's update on the merged rows, a row being a chain of calls
    plain   a loop in PyTorch and transformers on the same rows: the same loss, the same AdamW, one row per pass
    calls   the learner's update on rows of one call each, as they would be without merging

Speed is trained-forward tokens per second of an update; what comes before it (imports, model) is `start_s`.

    python -m bench.train --rollouts 2 --rounds 3
"""

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import asdict
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from bench.long_rollouts import record
from proxy_addons.packing import read_calls
from tasks.run import MODELS
from tasks.run import ROOT
from training.job import TrainSettings
from training.rows import Row
from training.rows import build_rows

OUT = ROOT / "bench" / "out"
MODEL = MODELS / "tiny"
MIN_CALLS = 12
GOALS = {"speed_over_plain": 0.9, "merging_tokens": 4.0}
SETTINGS = TrainSettings(max_row_tokens=1 << 17, device="cpu")
UPDATES = {"ours": 3, "plain": 3, "calls": 1}
PARTS = tuple(UPDATES)


def one_call_each(row: Row) -> Iterator[Row]:
    """The row as it would be without merging: for each call its whole prompt and what was sampled."""
    end = 0
    for bit, run in groupby(row.mask):
        start, end = end, end + len(list(run))
        if bit:
            mask = [0] * start + [1] * (end - start)
            yield replace(row, ids=row.ids[:end], mask=mask, logprobs=[*[0.0] * start, *row.logprobs[start:end]])


def scored(rows: list[Row]) -> list[Row]:
    """The rows with the model's own log-probabilities as the recorded ones: a script has none."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    found = []
    for row in rows:
        with torch.no_grad():
            new = _log_probs(model, row)
        found.append(
            replace(row, logprobs=[0.0, *(value * bit for value, bit in zip(new.tolist(), row.mask[1:], strict=True))])
        )
    return found


def _log_probs(model: Any, row: Row) -> torch.Tensor:
    """Of each token but the first."""
    ids = torch.tensor(row.ids)
    scores = model(ids[None], use_cache=False).logits[0, :-1].log_softmax(-1)
    return scores.gather(1, ids[1:, None])[:, 0]


def plain_update(rows: list[Row], advantages: dict[str, float]) -> Callable[[], object]:
    """One PPO step as anybody would write it."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="sdpa").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=SETTINGS.learning_rate, weight_decay=SETTINGS.weight_decay)
    tokens, clip = sum(row.trained_tokens for row in rows), SETTINGS.clip_ratio

    def update() -> None:
        for row in rows:
            mask = torch.tensor(row.mask[1:]).bool()
            ratio = (_log_probs(model, row)[mask] - torch.tensor(row.logprobs[1:])[mask]).exp()
            advantage = advantages[row.rollout]
            loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)).sum() / tokens
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.clip_grad)
        optimizer.step()
        optimizer.zero_grad()

    return update


def our_update(rows: list[Row], advantages: dict[str, float]) -> Callable[[], object]:
    """The learner's, checkpoint excluded."""
    from training.cpu_platform import select_device

    select_device("cpu")
    from training.learner import Learner  # veRL fixes its device when it is imported

    learner = Learner(MODEL, SETTINGS)
    return lambda: learner.update(rows, advantages, seed=0, step=0)


def measure(part: str, file: Path, born: float) -> dict[str, Any]:
    """Updates by `part`, in this process, the median counts; the first, which is not among them, warms up. `born`: when
    it was started (`time.time`)."""
    rows = [
        Row(**{**row, "calls": tuple(row["calls"]), "versions": tuple(row["versions"])})
        for row in json.loads(file.read_text())
    ]
    advantages = {name: 1.0 - 2.0 * (n % 2) for n, name in enumerate(sorted({row.rollout for row in rows}))}
    torch.set_num_threads(SETTINGS.threads)
    update = (plain_update if part == "plain" else our_update)(rows, advantages)
    start = time.time()
    update()
    first = time.time() - start
    seconds = []
    for _ in range(UPDATES[part]):
        begun = time.perf_counter()
        update()
        seconds.append(time.perf_counter() - begun)
    return {
        "part": part,
        "seconds": statistics.median(seconds),
        "first_s": first,
        "start_s": start - born,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def in_a_process(part: str, file: Path) -> dict[str, Any]:
    """What `measure` finds in a process of its own."""
    argv = [sys.executable, "-m", "bench.train", "--part", part, "--file", str(file), "--born", str(time.time())]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print({key: round(value, 2) if isinstance(value, float) else value for key, value in found.items()}, flush=True)
    return found


def run(folder: Path, each: int, rounds: int) -> dict[str, Any]:
    """Record, then measure every part `rounds` times, taking turns."""
    ended = asyncio.run(record(MODEL, folder, each))
    bad = [(row["rollout"], row["reason"]) for row in ended if row["exit"] != "completed" or row["calls"] < MIN_CALLS]
    assert not bad, bad
    calls = [call for row in ended for call in read_calls(row["calls_path"])]
    merged, report = build_rows(calls, max_row_tokens=SETTINGS.max_row_tokens, need_logprobs=False)
    merged = scored(merged)
    apart = [one for row in merged for one in one_call_each(row)]
    assert sum(row.trained_tokens for row in apart) == report.trained_tokens
    files = {"ours": folder / "merged.json", "calls": folder / "apart.json", "plain": folder / "merged.json"}
    for file, rows in ((files["ours"], merged), (files["calls"], apart)):
        file.write_text(json.dumps([asdict(row) for row in rows]))
    # Without merging an update takes many times as long: once is enough to see it.
    order = [*(part for _ in range(rounds) for part in ("ours", "plain")), "calls"]
    runs = [in_a_process(part, files[part]) for part in order]
    tokens = {"ours": sum(len(row.ids) for row in merged), "calls": sum(len(row.ids) for row in apart)}
    tokens["plain"] = tokens["ours"]
    by_part = {part: [one for one in runs if one["part"] == part] for part in PARTS}
    median = {
        part: {key: round(statistics.median(one[key] for one in own), 3) for key in own[0] if key != "part"}
        | {
            "tokens": tokens[part],
            "tokens_per_s": round(tokens[part] / statistics.median(one["seconds"] for one in own), 1),
        }
        for part, own in by_part.items()
    }
    return {
        "model": {"folder": "models/tiny", "threads": SETTINGS.threads},
        "rollouts": {
            "count": len(ended),
            "harnesses": sorted({row["harness"] for row in ended}),
            "calls": sorted(row["calls"] for row in ended),
        },
        "refused_calls": dict(report.refused),
        "trained_tokens": report.trained_tokens,
        "rows": {"merged": len(merged), "apart": len(apart)},
        "parts": median,
        # Of neighbours in time, so that a machine that is slower for a while is so for both.
        "speed_over_plain": round(
            statistics.median(
                plain["seconds"] / ours["seconds"]
                for ours, plain in zip(by_part["ours"], by_part["plain"], strict=True)
            ),
            3,
        ),
        "merging": {
            "tokens": round(tokens["calls"] / tokens["ours"], 2),
            "seconds": round(median["calls"]["seconds"] / median["ours"]["seconds"], 2),
        },
        "goals": GOALS,
        "rounds": runs,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.train", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=2, help="in each harness")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--born", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(measure(args.part, args.file, args.born)))
        return
    with tempfile.TemporaryDirectory(prefix="openforge-bench-", dir=ROOT / ".openforge") as folder:
        found = run(Path(folder), args.rollouts, args.rounds)
    OUT.mkdir(exist_ok=True)
    text = json.dumps(found, indent=1)
    (OUT / "train.json").write_text(text)
    print(json.dumps({key: value for key, value in found.items() if key != "rounds"}, indent=1))
    print(f"written to {OUT / 'train.json'}")


if __name__ == "__main__":
    main()
