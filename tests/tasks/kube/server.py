"""The test cluster as a process whose pods do what ours do: `python -m tests.tasks.kube.server --median 20`.

It prints its address on one line and serves until it is ended, then prints what was asked of it and when each pod ran.
With `--chaos` it drops watches, answers 429, 500 and 409, cuts connections, and kills or evicts a tenth of the pods.
"""

import argparse
import asyncio
import json
import random
import signal
import time
from typing import Any

import aiohttp

from tests.kube import scripts
from tests.kube.cluster import Cluster
from tests.kube.cluster import cluster
from tests.kube.kubelet import Script
from tests.kube.pods import Pod
from tests.kube.watches import End
from tests.tasks.kube.support import Sidecar
from tests.tasks.kube.support import left
from tests.tasks.kube.support import result

ENDS: tuple[End, ...] = ("silent", "cut", "closed", "expired")
BAD = (scripts.evicted, scripts.oom_killed, scripts.deleted, scripts.preempted, scripts.vanishes)


def worker(median: float, sigma: float, ran: dict[str, list[float]], chaos: float, seed: int) -> Script:
    """Run for a log-normal time, leave a result that names the pod, exit; `ran` gets each one's start and end."""
    numbers = random.Random(seed)

    async def script(pod: Pod) -> None:
        seconds = median * numbers.lognormvariate(0, sigma)
        if numbers.random() < chaos:
            await numbers.choice(BAD)(min(seconds, 1.0))(pod)
            return
        await pod.schedule()
        sidecar = Sidecar(pod)
        try:
            await sidecar.fetch()
            pod.running()
            start = time.time()
            await asyncio.sleep(seconds)
            ran[pod.labels["job-name"]] = [start, time.time()]
            status = await sidecar.send(result(files={"workspace/pod.txt": pod.uid.encode()}))
        except aiohttp.ClientError:  # its controller was killed
            status = 0
        pod.exited(0, container="agent")
        pod.exited(0 if status == 200 else 1, container="sidecar")

    return script


async def trouble(c: Cluster, seed: int) -> None:
    """What goes wrong with the API while the pods run."""
    numbers = random.Random(seed)
    for status in (429, 500, 503):
        c.faults.answer(
            "POST", "/", status, times=float("inf"), probability=0.02, retry_after=1 if status == 429 else None
        )
    c.faults.answer("DELETE", "/", 500, times=float("inf"), probability=0.05)
    c.faults.answer("GET", "/", 500, times=float("inf"), probability=0.02)
    c.faults.lose_answer("POST", "/jobs", times=float("inf"), probability=0.03)
    c.faults.cut("POST", "/secrets", times=float("inf"), probability=0.03)
    while True:
        await asyncio.sleep(numbers.uniform(1, 3))
        c.watches.end(numbers.choice(ENDS))


async def serve(median: float, sigma: float, capacity: int, chaos: float) -> None:
    ran: dict[str, list[float]] = {}
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with cluster(worker(median, sigma, ran, chaos, 1), capacity=capacity) as c:
        print(c.url, flush=True)
        troubles = asyncio.create_task(trouble(c, 2)) if chaos else None
        await stop.wait()
        if troubles:
            troubles.cancel()
        requests: dict[str, Any] = {f"{verb} {kind}": count for (verb, kind), count in c.requests.items()}
        print(json.dumps({"requests": requests, "ran": ran, "left": left(c)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tasks.kube.server")
    parser.add_argument("--median", type=float, default=20.0, help="seconds that a pod runs")
    parser.add_argument("--sigma", type=float, default=0.5, help="of the log-normal time")
    parser.add_argument("--capacity", type=int, default=10_000, help="how many pods the nodes have room for")
    parser.add_argument("--chaos", type=float, default=0.0, help="share of the pods that are killed or evicted")
    options = parser.parse_args()
    asyncio.run(serve(options.median, options.sigma, options.capacity, options.chaos))


if __name__ == "__main__":
    main()
