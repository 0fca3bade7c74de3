"""`make bench-rollouts`: what the controller of rollouts on Kubernetes costs. Numbers go to bench/out/rollouts.json.

The cluster is the tests' (an in-memory API server with scripted pods, in a process of its own): pods fetch their files,
run for a log-normal time of median 20 s, leave a result and exit. Controller and collector are this process. So this
measures our side alone; a real API server adds its own latency to each of the three requests that a rollout costs.

    python -m bench.rollouts --sizes 1000,5000 --in-flight 256
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kubernetes.aio.client import Configuration
from rich.console import Console
from rich.table import Table

from proxy_addons.identity import Rollout
from tasks.kube.settings import Settings
from tasks.run import ROOT
from tasks.sandboxes import Spec
from tasks.sandboxes.kubernetes import Kubernetes
from training.child import free_port

OUT = ROOT / "bench" / "out"
GOALS = {
    "cpu_s_per_1000": 10.0,
    "peak_rss_mb": 250.0,
    "api_requests_per_rollout": 4.0,
    "end_to_known_p99_s": 1.0,
    "idle_share": 0.03,
}


def settings(in_flight: int) -> Settings:
    """Of a cluster that is reached over loopback."""
    port = free_port()
    return Settings(
        run="bench",
        namespace="openforge",
        image="registry.test/task:1",
        sidecar_image="registry.test/sidecar:1",
        payloads={"claude_code": "registry.test/claude-code:1"},
        collector_url=f"http://127.0.0.1:{port}",
        collector_listen=("127.0.0.1", port),
        max_pods=in_flight,
        creates_per_s=100.0,
    )


def spec(folder: Path, number: int, try_: int = 0) -> Spec:
    """A small rollout's spec."""
    rollout = Rollout("bench", 1, f"task-{number // 8}", number % 8, try_)
    place = folder / rollout.id
    for name in ("workspace", "home"):
        (place / name).mkdir(parents=True)
    (place / "workspace" / "notes.txt").write_text("value = 42\n" * 100)
    return Spec(
        name=rollout.id,
        argv=("agent",),
        env={},
        workspace=place / "workspace",
        home=place / "home",
        log_dir=place / "log",
        wall_s=600.0,
        payload="claude_code",
        rollout=rollout,
    )


async def drive(url: str, specs: list[Spec], in_flight: int) -> dict[str, tuple[float, float]]:
    """Run all, `in_flight` at a time; when each was begun and known, by its name."""
    configuration = Configuration()
    configuration.host = url
    slots = asyncio.Semaphore(in_flight)
    times: dict[str, tuple[float, float]] = {}

    async def fill(one: Spec) -> None:
        async with slots:
            begun = time.time()
            outcome = await sandbox.run(one)
            times[one.name] = (begun, time.time())
            assert outcome.reason == "exited", outcome

    async with Kubernetes(settings(in_flight), configuration) as sandbox:
        await asyncio.gather(*(fill(one) for one in specs))
    return times


def controller(url: str, count: int, in_flight: int) -> dict[str, Any]:
    """What one controller used for `count` rollouts; making and removing their folders is not its work."""
    with tempfile.TemporaryDirectory(prefix="openforge-bench-") as folder:
        specs = [spec(Path(folder), number) for number in range(count)]
        before = time.process_time()
        times = asyncio.run(drive(url, specs, in_flight))
        cpu_s = time.process_time() - before
        peak_rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"times": times, "cpu_s": cpu_s, "peak_rss_mb": peak_rss_mb}


def measure(count: int, in_flight: int, median: float) -> dict[str, Any]:
    """One run in a process of its own, so that its peak memory is its own."""
    command = [sys.executable, "-m", "tests.tasks.kube.server", "--median", str(median)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as cluster:
        assert cluster.stdout
        url = cluster.stdout.readline().strip()
        try:
            arguments = ["--drive", url, "--sizes", str(count), "--in-flight", str(in_flight)]
            done = subprocess.run(
                [sys.executable, "-m", "bench.rollouts", *arguments], cwd=ROOT, capture_output=True, text=True
            )
            if done.returncode:
                raise SystemExit(f"bench-rollouts: the controller failed:\n{done.stderr[-2000:]}")
        finally:
            cluster.terminate()
        seen = json.loads(cluster.stdout.read())
    driven = json.loads(done.stdout)
    return summary(count, in_flight, driven, seen)


def summary(count: int, in_flight: int, driven: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    """The numbers of one run. Idle: slots without a running pod while there was always another rollout to begin."""
    times, ran = driven["times"], seen["ran"]
    begun = sorted(start for start, _ in times.values())
    late = [known - ran[name][1] for name, (_, known) in times.items()]
    full, last = begun[min(in_flight, count - 1)], begun[-1]
    busy = sum(max(0.0, min(end, last) - max(start, full)) for start, end in ran.values())
    asked = sum(number for what, number in seen["requests"].items() if not what.startswith("watch"))
    return {
        "rollouts": count,
        "in_flight": in_flight,
        "wall_s": round(max(known for _, known in times.values()) - begun[0], 1),
        "launches_per_s_at_start": round(min(in_flight, count - 1) / max(full - begun[0], 1e-9), 1),
        "cpu_s_per_1000": round(driven["cpu_s"] / count * 1000, 2),
        "peak_rss_mb": round(driven["peak_rss_mb"], 1),
        "api_requests_per_rollout": round(asked / count, 3),
        "end_to_known_p50_s": round(statistics.median(late), 3),
        "end_to_known_p99_s": round(statistics.quantiles(late, n=100)[98], 3),
        "idle_share": round(1 - busy / (in_flight * (last - full)), 4) if last > full else None,
        "left_in_the_cluster": len(seen["left"]),
    }


def show(rows: list[dict[str, Any]]) -> None:
    """A table on the terminal."""
    table = Table("", *(f"{row['rollouts']:,} rollouts" for row in rows), "goal")
    for name in (key for key in rows[0] if key != "rollouts"):
        table.add_row(name, *(str(row[name]) for row in rows), f"≤ {GOALS[name]:g}" if name in GOALS else "")
    Console().print(table)


def main() -> None:
    """Measure each size, print, and write bench/out/rollouts.json."""
    parser = argparse.ArgumentParser(prog="python -m bench.rollouts")
    parser.add_argument("--sizes", default="1000,5000", help="numbers of rollouts")
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--median", type=float, default=20.0, help="seconds that a pod runs")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    if options.drive:
        print(json.dumps(controller(options.drive, sizes[0], options.in_flight)))
        return
    rows = [measure(size, options.in_flight, options.median) for size in sizes]
    show(rows)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "rollouts.json").write_text(json.dumps({"machine": machine, "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
