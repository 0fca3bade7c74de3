"""`make soak-proxy`: the proxy under a long load, and killed a thousand times; what it came to goes to
bench/out/soak.json.

    memory   20,000 calls of 60 KB, each rollout of 20 calls registered, recorded and ended: resident memory over time
    kills    SIGKILLs at random moments of a load: is every acknowledged call in the record, and does no cut rollout
             look whole (bench/kills.py)

Both end early, and say so, when their share of `--minutes` is over.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from aiohttp import web
from transformers import AutoTokenizer

from bench.fake_engine import TURN
from bench.fake_engine import app
from bench.kills import rounds
from bench.proxy import Load
from bench.proxy import converse
from proxy_addons.identity import Rollout
from proxy_addons.live import Limits
from tasks.proxy import Proxy
from tasks.proxy import proxy_python
from tasks.proxy import running_proxy
from tasks.run import MODELS
from tasks.run import ROOT

OUT = ROOT / "bench" / "out"
MODEL = MODELS / "tiny"
CALLS, KILLS = 20_000, 1_000
LOAD = Load(kb=60, connections=8, turns=20)
WARM_UP = 0.2
FLAT = 0.05


async def memory(engine: str, calls: int, stop_at: float, folder: Path) -> dict[str, Any]:
    """Resident memory of a proxy process, in MB, over `calls` calls."""
    left = iter(range(calls // LOAD.turns))
    seen: list[float] = []
    async with running_proxy(proxy_python(ROOT), [engine], MODEL, folder / "proxy.log") as proxy:
        process = psutil.Process(proxy.child.process.pid)

        async def worker(session: aiohttp.ClientSession) -> None:
            for sample in left:
                if time.monotonic() > stop_at:
                    return
                await _rollout(proxy, session, sample, folder)
                seen.append(process.memory_info().rss / 2**20)

        async with aiohttp.ClientSession(headers={"content-type": "application/json"}) as session:
            start = time.monotonic()
            await asyncio.gather(*(worker(session) for _ in range(LOAD.connections)))
        files = process.num_fds()
    warm = seen[int(len(seen) * WARM_UP) :]
    tenth = max(len(warm) // 10, 1)
    tenths = [statistics.median(warm[start : start + tenth]) for start in range(0, len(warm) - tenth + 1, tenth)]
    usual = statistics.median(warm)
    return {
        "asked_for": calls,
        "calls": len(seen) * LOAD.turns,
        "seconds": round(time.monotonic() - start, 1),
        "mb_at_start": round(seen[0], 1),
        "mb_by_tenth_after_warm_up": [round(value, 1) for value in tenths],
        "mb_highest": round(max(warm), 1),
        "growth": round(tenths[-1] / tenths[0] - 1, 4),
        "flat": all(abs(value / usual - 1) <= FLAT for value in tenths),
        "open_files_at_end": files,
        "mb_over_time": [round(value, 1) for value in itertools.islice(seen, 0, None, max(len(seen) // 50, 1))],
    }


async def _rollout(proxy: Proxy, session: aiohttp.ClientSession, sample: int, folder: Path) -> None:
    rollout, calls = Rollout("soak", 0, "t", sample), folder / f"{sample}.parquet"
    await proxy.register(rollout, "soak", "key", calls, Limits(max_model_len=1 << 20))
    url = f"http://127.0.0.1:{proxy.address[1]}/r/{rollout.id}/v1/messages"
    await converse(session, (url, {"x-api-key": "key"}), LOAD)
    summary = await proxy.end(rollout)
    if not summary["complete"] or summary["answered"] != LOAD.turns:
        raise RuntimeError(f"{rollout.id}: {summary}")
    calls.unlink()


async def run(minutes: float, calls: int, kills: int, folder: Path) -> dict[str, Any]:
    """Both, one after the other; half of the time each."""
    end = time.monotonic() + minutes * 60
    ids = AutoTokenizer.from_pretrained(str(MODEL), local_files_only=True).encode(TURN, add_special_tokens=False)
    runner = web.AppRunner(app(ids), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine = f"http://127.0.0.1:{runner.addresses[0][1]}"
    half = time.monotonic() + minutes * 30
    found = {"memory": await memory(engine, calls, half, folder)}
    print(f"memory: {json.dumps(found['memory'])}", flush=True)
    start = time.monotonic()
    killed = await rounds(engine, MODEL, folder / "kills", kills, ids, after_last_byte=False, stop_at=end)
    found["kills"] = {"asked_for": kills, **asdict(killed), "seconds": round(time.monotonic() - start, 1)}
    print(f"kills: {json.dumps(found['kills'])}", flush=True)
    await runner.cleanup()
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0, help="time for all of it")
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--kills", type=int, default=KILLS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="openforge-soak-") as folder:
        found = asyncio.run(run(args.minutes - 0.5, args.calls, args.kills, Path(folder)))  # half a minute to start
    OUT.mkdir(exist_ok=True)
    (OUT / "soak.json").write_text(json.dumps(found, indent=1))
    print(f"written to {OUT / 'soak.json'}")
    if found["kills"]["problems"] or not found["memory"]["flat"]:
        sys.exit("soak-proxy: memory grew, or a record is wrong: see above")


if __name__ == "__main__":
    main()
