"""`make bench-records`: what a long conversation costs the proxy, what its records take on disk, and what it takes to
read a few rows of a large file; the numbers go to bench/out/records.json.

    conversation   100 calls that end at 100,000 tokens, through a proxy process: CPU per call, tokens encoded per call,
                   memory per live rollout, size of the calls file beside one JSON line per call (request and reply)
    reading        1 % of the rollouts of a 1 GB calls file: peak resident memory of a fresh process
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy
import psutil
import pyarrow as pa
from aiohttp import web
from transformers import AutoTokenizer

from bench.fake_engine import TURN
from bench.fake_engine import app
from bench.proxy import opening
from proxy_addons import records
from proxy_addons.identity import Rollout
from proxy_addons.live import Limits
from proxy_addons.packing import read_calls
from tasks.proxy import OwnProxy
from tasks.proxy import proxy_python
from tasks.proxy import running_proxy
from tasks.run import MODELS
from tasks.run import ROOT

OUT = ROOT / "bench" / "out"
MODEL = MODELS / "tiny"
TURNS, TOKENS = 100, 100_000
CONVERSATIONS = 4
AT_EACH_END = 5
FILE_BYTES = 1_000_000_000
SHARE = 0.01


def listing(tokenizer: Any, tokens: int, rng: random.Random) -> str:
    """What a shell would print: `tokens` tokens of lines that differ."""
    lines: list[str] = []
    while True:
        size, day, minute = rng.randrange(10**6), rng.randrange(1, 29), rng.randrange(60)
        lines.append(f"-rw-r--r-- 1 root root {size} Dec {day} 12:{minute:02} {rng.randrange(16**8):08x}.txt")
        if len(lines) % 8 == 0 and len(tokenizer.encode("\n".join(lines), add_special_tokens=False)) >= tokens:
            return "\n".join(lines)


def cpu_ms(pid: int) -> float:
    """CPU time of a process and all its threads, to the microsecond (see clock_getcpuclockid(3))."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e6


async def converse(proxy: OwnProxy, sample: int, tokenizer: Any, folder: Path) -> dict[str, Any]:
    """One conversation, left alive: CPU in ms of each call, and the bytes of its JSON lines."""
    rollout, rng = Rollout("bench", 0, "t", sample), random.Random(sample)
    limits = Limits(max_calls=TURNS, max_model_len=1 << 20)
    await proxy.register(rollout, "bench", "key", folder / f"{rollout.id}.parquet", limits)
    url = f"http://127.0.0.1:{proxy.address[1]}/r/{rollout.id}/v1/messages"
    body, took, size = opening(20), [], 0
    body["system"][0]["text"] = listing(tokenizer, 5000, rng)
    pid = proxy.child.process.pid
    async with aiohttp.ClientSession(headers={"content-type": "application/json", "x-api-key": "key"}) as session:
        for turn in range(TURNS):
            data, before = json.dumps(body), cpu_ms(pid)
            async with session.post(url, data=data) as answer:
                text = await answer.text()
            took.append(cpu_ms(pid) - before)
            if answer.status != 200:
                raise RuntimeError(f"turn {turn}: {answer.status} {text[:300]}")
            size += len(f'{{"request":{data},"reply":{text}}}\n'.encode())
            (block,) = json.loads(text)["content"]
            said = listing(tokenizer, (TOKENS - 5000) // TURNS - 60, rng)
            result = {"type": "tool_result", "tool_use_id": block["id"], "content": said}
            body["messages"] += [{"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    return {"rollout": rollout, "cpu_ms": took, "json_lines": size}


async def conversations(folder: Path) -> dict[str, Any]:
    """The conversations one after the other through one proxy; the first warms it up and does not count for CPU."""
    tokenizer = AutoTokenizer.from_pretrained(str(MODEL), local_files_only=True)
    runner = web.AppRunner(app(tokenizer.encode(TURN, add_special_tokens=False)), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with running_proxy(proxy_python(ROOT), [engine], MODEL, folder / "proxy.log") as proxy:
        process = psutil.Process(proxy.child.process.pid)
        done = [await converse(proxy, 0, tokenizer, folder)]
        before = process.memory_info().rss
        done += [await converse(proxy, 1 + n, tokenizer, folder) for n in range(CONVERSATIONS)]
        live_mb = (process.memory_info().rss - before) / CONVERSATIONS / 2**20
        summaries = [await proxy.end(each["rollout"]) for each in done]
    await runner.cleanup()
    assert all(s["complete"] and s["chains"] == 1 and s["calls"] == TURNS for s in summaries), summaries
    calls = read_calls(summaries[1]["calls_path"])
    mean = [statistics.mean(each["cpu_ms"][turn] for each in done[1:]) for turn in range(TURNS)]
    early, late = statistics.mean(mean[1 : 1 + AT_EACH_END]), statistics.mean(mean[-AT_EACH_END:])
    file_bytes, encoded = Path(summaries[1]["calls_path"]).stat().st_size, [len(c["prompt_delta_ids"]) for c in calls]
    return {
        "turns": TURNS,
        "tokens": calls[-1]["usage_prompt"] + calls[-1]["usage_completion"],
        "conversations": CONVERSATIONS,
        "cpu_ms": {
            "very_first_call": round(done[0]["cpu_ms"][0], 2),
            "turn_1": round(mean[0], 2),
            f"turns_2_to_{1 + AT_EACH_END}": round(early, 2),
            f"turns_{TURNS - AT_EACH_END + 1}_to_{TURNS}": round(late, 2),
            "late_over_turn_1": round(late / mean[0], 2),
            "late_over_early": round(late / early, 2),
            "every_tenth": [round(value, 2) for value in mean[9::10]],
        },
        "tokens_encoded": {
            "turn_1": encoded[0],
            "turn_2": encoded[1],
            f"turn_{TURNS}": encoded[-1],
            "all": sum(encoded),
            "all_prompts": sum(c["usage_prompt"] for c in calls),
        },
        "mb_per_live_rollout": round(live_mb, 1),
        "calls_file_bytes": file_bytes,
        "json_lines_bytes": done[1]["json_lines"],
        "json_lines_over_calls_file": round(done[1]["json_lines"] / file_bytes, 1),
    }


def rows(folder: Path, size: int) -> Iterator[pa.Table]:
    """Tables of calls, 20 to a rollout, until what is in `folder` has `size` bytes; random, so as not to compress."""
    rng = numpy.random.default_rng(0)
    count, per = 400, (4000, 400)
    number = 0
    while sum(file.stat().st_size for file in folder.iterdir()) < size:
        first, second = (pa.array(rng.integers(0, 150_000, count * n, dtype=numpy.int32)) for n in per)
        offsets = [pa.array(numpy.arange(count + 1, dtype=numpy.int32) * n) for n in per]
        logprobs = pa.array(-rng.random(count * per[1], dtype=numpy.float32))
        given = {
            "rollout": pa.array([f"r-{(number + row) // 20:06}" for row in range(count)]),
            "call": pa.array([(number + row) % 20 for row in range(count)], pa.int32()),
            "prompt_delta_ids": pa.ListArray.from_arrays(offsets[0], first),
            "sampled_ids": pa.ListArray.from_arrays(offsets[1], second),
            "sampled_logprobs": pa.ListArray.from_arrays(offsets[1], logprobs),
            "messages_delta": pa.array([rng.bytes(8000).hex() for _ in range(count)]),
        }
        number += count
        columns = [given.get(field.name, pa.nulls(count, field.type)) for field in records.CALLS]
        yield pa.table(columns, schema=records.CALLS)


READ = """
import random, sys
from proxy_addons import records
def peak():
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
every = sorted({row["rollout"] for row in records.stream(sys.argv[1], records.CALLS, ["rollout"])})
wanted = random.Random(0).sample(every, max(int(len(every) * float(sys.argv[2])), 1))
rows = tokens = 0
for row in records.stream(sys.argv[1], records.CALLS, rollouts=wanted):
    rows, tokens = rows + 1, tokens + len(row["prompt_delta_ids"]) + len(row["sampled_ids"])
print(len(every), len(wanted), rows, tokens, before, peak())
"""


def reading(folder: Path, size: int) -> dict[str, Any]:
    """Peak resident memory, in MB, of a process that reads `SHARE` of the rollouts of a file of `size` bytes."""
    path = folder / "large.parquet"
    records.write_all(str(path), records.CALLS, rows(folder, size))
    start = time.monotonic()
    argv = [sys.executable, "-c", READ, str(path), str(SHARE)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT)
    every, wanted, count, tokens, before, peak = done.stdout.split()
    found = {
        "file_bytes": path.stat().st_size,
        "rollouts": int(every),
        "rollouts_read": int(wanted),
        "rows_read": int(count),
        "tokens_read": int(tokens),
        "seconds": round(time.monotonic() - start, 1),
        "mb_after_imports": round(float(before), 1),
        "mb_peak": round(float(peak), 1),
    }
    path.unlink()
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.records", description=__doc__)
    parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="openforge-bench-") as folder:
        large = Path(folder) / "large"
        large.mkdir()
        found = {"conversation": asyncio.run(conversations(Path(folder))), "reading": reading(large, FILE_BYTES)}
    OUT.mkdir(exist_ok=True)
    text = json.dumps(found, indent=1)
    (OUT / "records.json").write_text(text)
    print(text)
    print(f"written to {OUT / 'records.json'}")


if __name__ == "__main__":
    main()
