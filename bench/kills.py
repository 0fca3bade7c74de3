"""Proxies killed at random moments of a load, and what their records hold afterwards.

A proxy takes seconds to import. So one process imports it (`multiprocessing`'s forkserver) and forks the proxy of each
round, which then is a process like any other: `serve` itself, real sockets, a real ledger, a real SIGKILL.
"""

import asyncio
import contextlib
import ctypes
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import aiohttp

from proxy_addons import records
from proxy_addons.__main__ import serve
from proxy_addons.identity import Rollout
from proxy_addons.ledger import compile_calls
from training.child import free_ports

_TOKEN = "token of the control port"
_PR_SET_PDEATHSIG = 1
_START_S = 60.0
_TRIES = 5
_AT_A_TIME = 3

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["bench.fork_server"])


def _serve(port: int, control_port: int, engine: str, model: Path, folder: Path) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(folder / "proxy.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    # One folder for mitmproxy's own certificate: to make the key takes longer than all else here.
    asyncio.run(serve(port, control_port, [engine], model, _TOKEN, str(folder.parent / "conf")))


@dataclass(frozen=True)
class Forked:
    """A proxy in a process of its own."""

    process: BaseProcess
    port: int
    control: str

    def kill(self) -> None:
        """SIGKILL, at once."""
        self.process.kill()


@contextlib.asynccontextmanager
async def forked(engine: str, model: Path, folder: Path, session: aiohttp.ClientSession) -> AsyncIterator[Forked]:
    """A proxy that listens. Raises RuntimeError if none comes up; a port that was just taken is tried again."""
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(_TRIES):
        port, control_port = free_ports(2)
        arguments = (port, control_port, engine, model, folder)
        process = _forks.Process(target=_serve, args=arguments, daemon=True)
        await asyncio.to_thread(process.start)
        proxy = Forked(process, port, f"http://127.0.0.1:{control_port}")
        try:
            if await _listens(proxy, session):
                yield proxy
                return
        finally:
            process.kill()
            await asyncio.to_thread(process.join)
            process.close()
    raise RuntimeError(f"no proxy came up: {(folder / 'proxy.log').read_text()[-500:]}")


async def _listens(proxy: Forked, session: aiohttp.ClientSession) -> bool:
    deadline = time.monotonic() + _START_S
    while proxy.process.is_alive() and time.monotonic() < deadline:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(f"{proxy.control}/health", headers=control_headers()) as answer:
                answer.raise_for_status()
            async with session.get(f"http://127.0.0.1:{proxy.port}/") as answer:  # the control port may be another's
                await answer.read()
            return True
        await asyncio.sleep(0.01)
    return False


def control_headers() -> dict[str, str]:
    """What a forked proxy's control port wants to see."""
    return {"authorization": f"Bearer {_TOKEN}"}


@dataclass
class Client:
    """One rollout as its harness and its orchestrator saw it. `acknowledged` counts the calls whose last byte came."""

    rollout: Rollout
    turns: int
    folder: Path
    acknowledged: int = 0
    asked: int = 0
    asked_to_end: bool = False
    ended: dict[str, Any] | None = None

    @property
    def calls_path(self) -> Path:
        return self.folder / f"{self.rollout.id}.parquet"

    async def run(self, proxy: Forked, session: aiohttp.ClientSession, on_last_byte: Callable[[], None]) -> None:
        """Register, ask turn after turn, every other one streamed, and end. Raises ClientError when the proxy dies."""
        key = f"key-{self.rollout.id}"
        who = {name: getattr(self.rollout, name) for name in ("run", "epoch", "task", "sample", "try_")}
        body = {**who, "harness": "soak", "key": key, "calls_path": str(self.calls_path)}
        async with session.post(f"{proxy.control}/rollouts", json=body, headers=control_headers()) as answer:
            assert answer.status == 201, await answer.text()
        url = f"http://127.0.0.1:{proxy.port}/r/{self.rollout.id}/v1/messages"
        messages: list[dict[str, Any]] = [{"role": "user", "content": "List the files."}]
        for turn in range(self.turns):
            stream = turn % 2 == 1
            data = {"model": "policy-v1", "max_tokens": 64, "stream": stream, "messages": messages}
            self.asked += 1
            async with session.post(url, json=data, headers={"x-api-key": key}) as answer:
                text = await answer.text()
            assert answer.status == 200, text
            if stream and "message_stop" not in text:
                raise aiohttp.ClientPayloadError("the stream broke off")
            self.acknowledged += 1
            on_last_byte()
            reply = [{"type": "text", "text": _said(text, stream)}]
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": f"And {turn}?"}]
        self.asked_to_end = True
        async with session.delete(f"{proxy.control}/rollouts/{self.rollout.id}", headers=control_headers()) as answer:
            self.ended = json.loads(await answer.text())

    def problems(self, sampled: Sequence[int]) -> list[str]:
        """What is wrong with the record of this rollout; `sampled` are the ids of every answer."""
        found = []
        if self.calls_path.exists():
            rows, complete = records.read(str(self.calls_path), records.CALLS), True
        else:
            ledger = self.calls_path.with_name(f".{self.calls_path.stem}.ledger")
            rows, complete = compile_calls(ledger, {"rollout": self.rollout.id})
        answered = {row["call"] for row in rows if row["status"] == "ok"}
        if lost := set(range(self.acknowledged)) - answered:
            found.append(f"acknowledged calls {sorted(lost)} are lost")
        if complete and not self.asked_to_end:
            found.append(f"looks whole after {len(answered)} calls of {self.turns}, and was never ended")
        if complete and answered != set(range(self.turns)):
            found.append(f"looks whole with calls {sorted(answered)} of {self.turns}")
        if self.ended is not None and not (self.ended.get("complete") and self.calls_path.exists()):
            found.append(f"was ended, and its file is not whole: {self.ended}")
        if any(row["sampled_ids"] != list(sampled) for row in rows if row["status"] == "ok"):
            found.append("holds other tokens than were sampled")
        return [f"{self.rollout.id}: {problem}" for problem in found]


def _said(text: str, stream: bool) -> str:
    if not stream:
        return "".join(block.get("text", "") for block in json.loads(text)["content"])
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")


@dataclass
class Found:
    """What the rounds came to. `calls_open` is a call asked and not acknowledged when the proxy died."""

    kills: int = 0
    rollouts: int = 0
    acknowledged: int = 0
    calls_open: int = 0
    cut: int = 0
    ended: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, clients: Sequence[Client], sampled: Sequence[int]) -> None:
        """Look at the records of a round whose proxy is dead."""
        self.kills += 1
        for client in clients:
            self.rollouts += 1
            self.acknowledged += client.acknowledged
            self.calls_open += client.asked - client.acknowledged
            self.ended += client.ended is not None
            self.cut += client.ended is None
            self.problems += client.problems(sampled)


async def rounds(
    engine: str, model: Path, folder: Path, count: int, sampled: Sequence[int], *, after_last_byte: bool, stop_at: float
) -> Found:
    """Kill `count` proxies, fewer if the monotonic clock passes `stop_at`, at random moments of a load or each the
    moment after a client got the last byte of a reply; `sampled` are the ids of every answer of `engine`."""
    found, left = Found(), iter(range(count))
    _, alone_s = await _round(engine, model, folder / "whole", random.Random(0), 60.0)
    span_s = None if after_last_byte else alone_s * (_AT_A_TIME - 1)  # beside others the load takes longer

    async def worker() -> None:
        for number in left:
            if time.monotonic() > stop_at:
                return
            place = folder / str(number)
            clients, _ = await _round(engine, model, place, random.Random(number), span_s)
            found.add(clients, sampled)
            if not found.problems:
                shutil.rmtree(place)

    await asyncio.gather(*(worker() for _ in range(_AT_A_TIME)))
    return found


async def _round(
    engine: str, model: Path, folder: Path, rng: random.Random, span_s: float | None
) -> tuple[list[Client], float]:
    """One proxy under a few conversations, killed. Returns the clients and how long the load ran."""
    clients = [Client(Rollout("soak", 0, "t", n), rng.randint(1, 5), folder) for n in range(3)]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, forked(engine, model, folder, session) as proxy:
        left = rng.randint(1, sum(client.turns for client in clients)) if span_s is None else 0

        def on_last_byte() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                proxy.kill()

        start = time.monotonic()
        work = [asyncio.ensure_future(client.run(proxy, session, on_last_byte)) for client in clients]
        await asyncio.wait(work, timeout=None if span_s is None else rng.uniform(0, span_s))
        proxy.kill()
        took = time.monotonic() - start
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, aiohttp.ClientError):
                raise outcome
        await asyncio.to_thread(proxy.process.join)
    return clients, took
