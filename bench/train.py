"""`make bench-train`: what an update costs; the numbers go to bench/out/train.json.

The rows are of real harnesses (`bench.long_rollouts`), the model is models/tiny. In one run:

    ours    the learner's update on the merged rows, a row being a chain of calls
    plain   a loop in PyTorch and transformers on the same rows: the same loss, the same AdamW, one row per pass
    calls   the learner's update on rows of one call each, as they would be without merging

Each has a process of its own, for its peak memory, its start (imports, model) and its tokens per second: those that
pass the model in an update, over its time. The speed of ours over plain is taken in one process that has both and takes
turns: the same kernels on the same rows differ by a fifth from one process to the next, and over minutes.

    python -m bench.train --rollouts 2 --pairs 10
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
PARTS = ("ours", "plain", "calls")


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


def _read(file: Path) -> list[Row]:
    return [
        Row(**{**row, "calls": tuple(row["calls"]), "versions": tuple(row["versions"])})
        for row in json.loads(file.read_text())
    ]


def _made(part: str, rows: list[Row]) -> Callable[[], object]:
    advantages = {name: 1.0 - 2.0 * (n % 2) for n, name in enumerate(sorted({row.rollout for row in rows}))}
    return (plain_update if part == "plain" else our_update)(rows, advantages)


def _seconds(update: Callable[[], object]) -> float:
    begun = time.perf_counter()
    update()
    return time.perf_counter() - begun


def alone(part: str, rows: list[Row], born: float) -> dict[str, Any]:
    """One update by `part` after a first that warms up. `born`: when this process was started (`time.time`)."""
    update = _made(part, rows)
    start_s = time.time() - born
    first_s, seconds = _seconds(update), _seconds(update)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"part": part, "seconds": seconds, "first_s": first_s, "start_s": start_s, "peak_mb": peak_mb}


def side_by_side(rows: list[Row], pairs: int) -> dict[str, Any]:
    """Updates by ours and plain in turns, who begins in turns too, after a first each that warms up."""
    updates = {part: _made(part, rows) for part in ("ours", "plain")}
    for update in updates.values():
        update()
    found: list[dict[str, float]] = []
    for number in range(pairs):
        order = list(updates) if number % 2 else list(updates)[::-1]
        found.append({part: _seconds(updates[part]) for part in order})
    return {"part": "pairs", "pairs": found, "ratio": statistics.median(one["plain"] / one["ours"] for one in found)}


def in_a_process(part: str, file: Path, pairs: int) -> dict[str, Any]:
    """What `alone` or `side_by_side` finds in a process of its own."""
    argv = [sys.executable, "-m", "bench.train", "--part", part, "--file", str(file), "--born", str(time.time())]
    argv += ["--pairs", str(pairs)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print({key: round(value, 2) if isinstance(value, float) else value for key, value in found.items()}, flush=True)
    return found


def run(folder: Path, each: int, pairs: int) -> dict[str, Any]:
    """Record, then measure every part, and ours beside plain."""
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
    tokens = {"ours": sum(len(row.ids) for row in merged), "calls": sum(len(row.ids) for row in apart)}
    tokens["plain"] = tokens["ours"]
    parts = {}
    for part in PARTS:
        one = in_a_process(part, files[part], pairs)
        parts[part] = {key: round(value, 3) for key, value in one.items() if key != "part"} | {
            "tokens": tokens[part],
            "tokens_per_s": round(tokens[part] / one["seconds"], 1),
        }
    beside = in_a_process("pairs", files["ours"], pairs)
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
        "parts": parts,
        "speed_over_plain": round(beside["ratio"], 3),
        "pairs": [{part: round(seconds, 3) for part, seconds in one.items()} for one in beside["pairs"]],
        "merging": {
            "tokens": round(tokens["calls"] / tokens["ours"], 2),
            "seconds": round(parts["calls"]["seconds"] / parts["ours"]["seconds"], 2),
        },
        "goals": GOALS,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.train", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=2, help="in each harness")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--part", choices=[*PARTS, "pairs"], help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--born", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        torch.set_num_threads(SETTINGS.threads)
        rows = _read(args.file)
        found = side_by_side(rows, args.pairs) if args.part == "pairs" else alone(args.part, rows, args.born)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory(prefix="openforge-bench-", dir=ROOT / ".openforge") as folder:
        found = run(Path(folder), args.rollouts, args.pairs)
    OUT.mkdir(exist_ok=True)
    text = json.dumps(found, indent=1)
    (OUT / "train.json").write_text(text)
    print(json.dumps({key: value for key, value in found.items() if key != "pairs"}, indent=1))
    print(f"written to {OUT / 'train.json'}")


if __name__ == "__main__":
    main()
