"""`make bench-chaos`: rollouts while the cluster misbehaves and their controller is killed; bench/out/chaos.json.

500 slots in groups of 8. The API server (the tests', in a process of its own) drops, cuts and expires watches, answers
429, 500 and 503, loses answers to POSTs that worked, and a tenth of the pods is evicted, killed, preempted or vanishes.
The controller is killed with SIGKILL three times and started again. At the end every slot must have exactly one
accepted try, and the cluster must hold nothing.

    python -m bench.chaos --slots 500 --kills 3
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from kubernetes.aio.client import Configuration

from bench.rollouts import OUT
from bench.rollouts import settings
from bench.rollouts import spec
from proxy_addons.errors import InfrastructureError
from tasks.run import ROOT
from tasks.sandboxes.kubernetes import Kubernetes

TRIES = 10


async def control(url: str, folder: Path, slots: int, in_flight: int) -> None:
    """Fill what is owed. A slot's accepted try is a file made in one step that fails if there is one already."""
    configuration = Configuration()
    configuration.host = url
    places = asyncio.Semaphore(in_flight)

    async def fill(number: int) -> None:
        accepted = folder / f"{number:04}.json"
        async with places:
            for try_ in range(TRIES):
                one = spec(Path(scratch), number, try_)
                reason: str
                try:
                    outcome = await sandbox.run(one)
                    reason, detail = outcome.reason, outcome.detail
                except InfrastructureError as error:
                    reason, detail = "not started", str(error)
                with (folder / "tries.log").open("a") as log:
                    log.write(
                        json.dumps({"slot": number, "try": try_, "reason": reason, "detail": detail[:200]}) + "\n"
                    )
                if reason == "exited":
                    pod = (one.workspace / "pod.txt").read_text()
                    temporary = Path(scratch) / f"{number:04}"
                    temporary.write_text(json.dumps({"try": try_, "pod": pod}))
                    os.link(temporary, accepted)
                    return
        raise SystemExit(f"slot {number} was not filled in {TRIES} tries")

    with tempfile.TemporaryDirectory(prefix="openforge-chaos-") as scratch:
        sandbox = Kubernetes(settings(in_flight), configuration, silence_s=5.0)
        print(f"reaped {len(await asyncio.to_thread(sandbox.reap, 'bench-e'))}", flush=True)
        async with sandbox:
            owed = [number for number in range(slots) if not (folder / f"{number:04}.json").exists()]
            await asyncio.gather(*(fill(number) for number in owed))


def run(slots: int, kills: int, in_flight: int, median: float) -> dict[str, Any]:
    """The whole of it; the numbers."""
    folder = Path(tempfile.mkdtemp(prefix="openforge-chaos-"))
    numbers, lives, start = random.Random(3), 0, time.monotonic()
    serve = ["-m", "tests.tasks.kube.server", "--median", str(median), "--chaos", "0.1"]
    with subprocess.Popen([sys.executable, *serve], cwd=ROOT, stdout=subprocess.PIPE, text=True) as cluster:
        assert cluster.stdout
        try:
            url = cluster.stdout.readline().strip()
            drive = ["-m", "bench.chaos", "--control", url, "--folder", str(folder)]
            drive += ["--slots", str(slots), "--in-flight", str(in_flight)]
            while True:
                lives += 1
                controller = subprocess.Popen([sys.executable, *drive], cwd=ROOT)
                if lives <= kills:
                    target = slots * lives // (kills + 1) + numbers.randint(-slots // 20, slots // 20)
                    while controller.poll() is None and len(list(folder.glob("*.json"))) < target:
                        time.sleep(0.05)
                    controller.send_signal(signal.SIGKILL)
                if controller.wait() == 0:
                    break
                if lives > kills:
                    raise SystemExit("chaos: the controller failed")
        finally:
            cluster.terminate()
        seen = json.loads(cluster.stdout.read())
    accepted = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    tries = [json.loads(line) for line in (folder / "tries.log").read_text().splitlines()]
    shutil.rmtree(folder)
    return {
        "slots": slots,
        "controllers_killed": lives - 1,
        "wall_s": round(time.monotonic() - start, 1),
        "accepted": len(accepted),
        "pods_accepted_twice": len(accepted) - len({each["pod"] for each in accepted}),
        "accepted_at_try": dict(sorted(Counter(each["try"] for each in accepted).items())),
        "tries_seen_to_their_end": len(tries),
        "by_reason": dict(Counter(each["reason"] for each in tries)),
        "left_in_the_cluster": len(seen["left"]),
    }


def main() -> None:
    """Run it, print the numbers, write bench/out/chaos.json; the exit status tells whether all was well."""
    parser = argparse.ArgumentParser(prog="python -m bench.chaos")
    parser.add_argument("--slots", type=int, default=500)
    parser.add_argument("--kills", type=int, default=3, help="how often the controller is killed")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--median", type=float, default=3.0, help="seconds that a pod runs")
    parser.add_argument("--control", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.control:
        asyncio.run(control(options.control, options.folder, options.slots, options.in_flight))
        return
    found = run(options.slots, options.kills, options.in_flight, options.median)
    print(json.dumps(found, indent=1))
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "chaos.json").write_text(json.dumps(found, indent=1) + "\n")
    bad = found["accepted"] != found["slots"] or found["pods_accepted_twice"] or found["left_in_the_cluster"]
    sys.exit("chaos: not every slot has exactly one accepted try, or something is left" if bad else 0)


if __name__ == "__main__":
    main()
