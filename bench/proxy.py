"""`make bench-proxy`: our recording proxy beside four others in one run; the numbers go to bench/out/proxy.json.

Same engine without think time, same conversations, same client for all. Client and engine share one CPU, what is
measured has another to itself. `direct` is the client at the engine with nothing between.

    ours        translates Anthropic Messages to token ids and back, records every call, fsynced
    litellm     LiteLLM's proxy: translates Anthropic Messages to Chat Completions and back, records nothing
    mitmproxy   passes on, through an addon that does nothing
    aiohttp     passes on
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from rich.console import Console
from rich.table import Table

from bench.fake_engine import COMMAND
from bench.fake_engine import THINKING
from bench.fake_engine import TOKENS_PER_S
from proxy_addons.identity import Rollout
from proxy_addons.live import Limits
from tasks.proxy import proxy_python
from tasks.proxy import running_proxy
from tasks.run import MODELS
from tasks.run import ROOT
from training.child import Child
from training.child import free_port
from training.child import start_child

OUT = ROOT / "bench" / "out"
LITELLM = ROOT / ".venv-litellm" / "bin" / "litellm"
PROSE = "read the file, write its value to answer.txt and check the server's config; list what the script says. "
RESULT = "total 12\n" + "-rw-r--r-- 1 root root 120 Dec  1 12:00 notes.txt\n" * 5


@dataclass(frozen=True)
class Load:
    """`connections` conversations side by side, each of `turns` calls; the first body is `kb` KB.

    The whole is done `rounds` times, with new conversations. With `tokens` each answer is a stream that takes the
    engine the time of that many tokens; the conversations then start spread over the time of one answer.
    """

    kb: int
    connections: int
    rounds: int = 1
    turns: int = 20
    tokens: int = 0

    @property
    def conversations(self) -> int:
        return self.connections * self.rounds


LOADS = (
    *(Load(kb, connections, rounds) for connections, rounds in ((1, 20), (64, 1), (256, 1)) for kb in (5, 60)),
    Load(60, 64, turns=3, tokens=400),  # 8 s at 50 tokens a second: longer than the proxy holds a status back
)

Door = tuple[str, dict[str, str]]
"""Where one conversation is sent, and with which headers."""


@dataclass
class Target:
    """What is measured: its process (None: nothing lies between), a way in for each conversation, and one more to warm
    it up before it is measured."""

    name: str
    child: Child | None
    warm: Door
    doors: list[Door]


def opening(kb: int) -> dict[str, Any]:
    """The first request of a conversation, as Claude Code shapes it, `kb` KB of JSON."""
    schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    body = {
        "model": "policy-v1",
        "max_tokens": 512,
        "system": [{"type": "text", "text": ""}],
        "tools": [{"name": "Bash", "description": "Run a command.", "input_schema": schema}],
        "messages": [{"role": "user", "content": "List the files."}],
    }
    missing = kb * 1000 - len(json.dumps(body))
    text = PROSE * (missing // len(PROSE) + 1)
    body["system"] = [{"type": "text", "text": text[:missing]}]
    return body


async def converse(session: aiohttp.ClientSession, door: Door, load: Load, late_s: float = 0.0) -> list[float]:
    """One conversation; the seconds of each call. Raises RuntimeError on an answer that is not the engine's."""
    url, headers = door
    body, took = opening(load.kb), []
    if load.tokens:
        body |= {"stream": True, "max_tokens": THINKING + load.tokens}
    await asyncio.sleep(late_s)
    for turn in range(load.turns):
        data = json.dumps(body)
        start = time.perf_counter()
        async with session.post(url, data=data, headers=headers) as answer:
            reply = await answer.read()
        took.append(time.perf_counter() - start)
        block = _streamed_call(reply) if load.tokens else _called(reply)
        if answer.status != 200 or block.get("input") != COMMAND:
            raise RuntimeError(f"{url}: turn {turn}: {answer.status} {reply[:300]!r}")
        result = {"type": "tool_result", "tool_use_id": block["id"], "content": RESULT}
        body["messages"] += [{"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    return took


def _called(reply: bytes) -> dict[str, Any]:
    content = json.loads(reply).get("content") or [{}]
    return content[-1]


def _streamed_call(reply: bytes) -> dict[str, Any]:
    """The tool call in a stream of Messages events."""
    block: dict[str, Any] = {}
    text = ""
    for line in reply.splitlines():
        data = json.loads(line[6:]) if line.startswith(b"data: {") else {}
        if data.get("content_block", {}).get("type") == "tool_use":
            block = data["content_block"]
        text += data.get("delta", {}).get("partial_json") or ""
    return {**block, "input": json.loads(text or "null")}


async def measure(target: Target, load: Load) -> dict[str, Any]:
    """Put `load` on `target` once."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=600)
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        before, start = _cpu_s(target.child), time.perf_counter()
        peak = asyncio.create_task(_peak_mb(target.child))
        spread, took = load.tokens / TOKENS_PER_S / load.connections, []
        for first in range(0, load.conversations, load.connections):
            doors = target.doors[first : first + load.connections]
            took += await asyncio.gather(*(converse(session, door, load, i * spread) for i, door in enumerate(doors)))
        seconds, cpu = time.perf_counter() - start, _cpu_s(target.child) - before
        peak.cancel()
    calls = sorted(t * 1000 for conversation in took for t in conversation)
    return {
        **asdict(load),
        "target": target.name,
        "calls": len(calls),
        "calls_per_s": round(len(calls) / seconds, 1),
        "p50_ms": round(statistics.median(calls), 2),
        "p99_ms": round(calls[int(len(calls) * 0.99)], 2),
        "cpu_share": round(cpu / seconds, 3),
        "cpu_ms_per_call": round(cpu / len(calls) * 1000, 3),
        "peak_mb": round(await peak, 1),
    }


def _family(child: Child | None) -> list[psutil.Process]:
    if child is None:
        return []
    top = psutil.Process(child.process.pid)
    return [top, *top.children(recursive=True)]


def _cpu_s(child: Child | None) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in _family(child))


async def _peak_mb(child: Child | None) -> float:
    peak = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            peak = max(peak, sum(process.memory_info().rss for process in _family(child)) / 2**20)
            await asyncio.sleep(0.1)
    return peak


def _pin(processes: Sequence[psutil.Process], cpu: int) -> None:
    """Keep the processes and what they start from now on to one CPU, where there are two."""
    if (os.cpu_count() or 1) > 1:
        for thread in (thread for process in processes for thread in process.threads()):
            os.sched_setaffinity(thread.id, {cpu})


@contextlib.asynccontextmanager
async def server(name: str, argv: Sequence[str], port: int, folder: Path) -> AsyncIterator[Child]:
    """A server process on `port` for the time of the block."""
    child = start_child(argv, folder / f"{name}.log", env=os.environ, cwd=ROOT)
    try:
        while True:
            if not child.alive():
                raise RuntimeError(f"{name} ended while starting: {child.last_lines()}")
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            await asyncio.sleep(0.1)
        yield child
    finally:
        await asyncio.to_thread(child.stop)


@contextlib.asynccontextmanager
async def ours(engine: str, load: Load, folder: Path) -> AsyncIterator[Target]:
    """Our proxy, with a live rollout for each conversation."""
    python = proxy_python(ROOT)
    async with running_proxy(python, [engine], MODELS / "tiny", folder / "ours.log") as proxy:
        doors = []
        rollouts = [Rollout("bench", 0, "t", sample) for sample in range(load.conversations + 1)]
        limits = Limits(max_model_len=1 << 20, max_tokens=THINKING + load.tokens)
        for rollout in rollouts:
            await proxy.register(rollout, "bench", f"key-{rollout.id}", folder / f"{rollout.id}.parquet", limits)
            url = f"http://127.0.0.1:{proxy.address[1]}/r/{rollout.id}/v1/messages"
            doors.append((url, {"x-api-key": f"key-{rollout.id}"}))
        yield Target("ours", proxy.child, doors[-1], doors)
        for rollout in rollouts[:-1]:
            summary = await proxy.end(rollout)
            assert summary["complete"] and summary["chains"] == 1 and summary["calls"] == load.turns, summary


@contextlib.asynccontextmanager
async def pass_through(kind: str, engine: str, load: Load, folder: Path) -> AsyncIterator[Target]:
    """A proxy that only passes on."""
    port = free_port()
    argv = [str(proxy_python(ROOT)), "-m", "bench.pass_through", kind, "--port", str(port), "--to", engine]
    async with server(kind, argv, port, folder) as child:
        door: Door = (f"http://127.0.0.1:{port}/v1/messages", {})
        yield Target(kind, child, door, [door] * load.conversations)


@contextlib.asynccontextmanager
async def litellm(engine: str, load: Load, folder: Path) -> AsyncIterator[Target]:
    """LiteLLM's proxy with one worker, its model on the engine's Chat Completions."""
    port = free_port()
    params = {"model": "hosted_vllm/policy", "api_base": f"{engine}/v1", "api_key": "none"}
    key = f"sk-{secrets.token_urlsafe(32)}"  # it does not start without one
    models = [{"model_name": "policy-v1", "litellm_params": params}]
    config = {"model_list": models, "general_settings": {"master_key": key}}
    (folder / "litellm.yaml").write_text(json.dumps(config))  # JSON is YAML
    argv = [str(LITELLM), "--config", str(folder / "litellm.yaml"), "--port", str(port), "--host", "127.0.0.1"]
    async with server("litellm", [*argv, "--num_workers", "1"], port, folder) as child:
        door = (f"http://127.0.0.1:{port}/v1/messages", {"x-api-key": key})
        yield Target("litellm", child, door, [door] * load.conversations)


@contextlib.asynccontextmanager
async def direct(engine: str, load: Load, folder: Path) -> AsyncIterator[Target]:
    """Nothing between client and engine."""
    door: Door = (f"{engine}/v1/messages", {})
    yield Target("direct", None, door, [door] * load.conversations)


def targets(engine: str, load: Load, folder: Path) -> dict[str, Any]:
    """What is measured under a load, one after the other."""
    found = {"direct": direct(engine, load, folder), "ours": ours(engine, load, folder)}
    found |= {kind: pass_through(kind, engine, load, folder) for kind in ("mitmproxy", "aiohttp")}
    return found | ({"litellm": litellm(engine, load, folder)} if LITELLM.exists() else {})


async def run(loads: Sequence[Load], folder: Path, only: Sequence[str]) -> list[dict[str, Any]]:
    """Every load on every target."""
    _pin([psutil.Process()], 0)
    port = free_port()
    argv = [sys.executable, "-m", "bench.fake_engine", "--model", str(MODELS / "tiny"), "--port", str(port)]
    rows = []
    async with server("engine", argv, port, folder):
        for load in loads:
            for name, target in targets(f"http://127.0.0.1:{port}", load, folder).items():
                if only and name not in ("direct", *only):
                    continue
                async with target as each:
                    _pin(_family(each.child), 1)
                    await measure(replace(each, doors=[each.warm]), Load(load.kb, 1, turns=3))
                    rows.append(await measure(each, load))
                print(json.dumps(rows[-1]), flush=True)
    return rows


LOAD = tuple(field.name for field in fields(Load))


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours beside the others under each load."""
    found = []
    for row in rows:
        if row["target"] != "ours":
            continue
        others = {r["target"]: r for r in rows if all(r[k] == row[k] for k in LOAD)}
        found.append(
            {
                **{key: row[key] for key in LOAD},
                "calls_per_s_over": {
                    name: round(row["calls_per_s"] / other["calls_per_s"], 2) for name, other in others.items()
                },
                "cpu_over": {
                    name: round(row["cpu_ms_per_call"] / other["cpu_ms_per_call"], 2)
                    for name, other in others.items()
                    if other["cpu_ms_per_call"]
                },
                "added_p50_ms": round(row["p50_ms"] - others["direct"]["p50_ms"], 2),
                "added_p99_ms": round(row["p99_ms"] - others["direct"]["p99_ms"], 2),
            }
        )
    return found


SHOWN = ("target", "calls_per_s", "p50_ms", "p99_ms", "cpu_ms_per_call", "cpu_share", "peak_mb")


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The rows as a table."""
    table = Table("KB, connections", *(name.replace("_", " ") for name in SHOWN))
    for row in rows:
        streamed = " streams" if row["tokens"] else ""
        table.add_row(f"{row['kb']}, {row['connections']}{streamed}", *(str(row[name]) for name in SHOWN))
    Console().print(table)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.proxy", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one connection only")
    parser.add_argument("--only", nargs="*", default=[], help="these targets only, beside direct")
    args = parser.parse_args()
    loads = [load for load in LOADS if load.connections == 1] if args.quick else LOADS
    with tempfile.TemporaryDirectory(prefix="openforge-bench-") as folder:
        rows = asyncio.run(run(loads, Path(folder), args.only))
    OUT.mkdir(exist_ok=True)
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    found = {"machine": machine, "rows": rows, "ratios": ratios(rows)}
    (OUT / "proxy.json").write_text(json.dumps(found, indent=1))
    show(rows)
    print(f"written to {OUT / 'proxy.json'}")


if __name__ == "__main__":
    main()
