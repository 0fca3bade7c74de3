"""ClawEval's mock services, one set for each rollout, and the gate through which the agent reaches their tools.

The programs are the checkout's own. They listen on unix sockets instead of ports, so any number of rollouts can run
and nobody else on the network sees them. The gate lets the declared tools pass and nothing else (not `/reset`, not
`/audit`), and notes every call where the agent cannot reach: that is what the grader reads as dispatches.
"""

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from aiohttp import web

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from tasks.beside import ServiceDied

DISPATCHES, AUDIT = "dispatches.json", "audit.json"
MAX_BODY = 256 << 10
MAX_CALLS = 1000
"""What one rollout may ask of its tools: all of it is kept until it is graded."""
READY_S = 60.0
"""Longer than the 10 s that tasks allow: many rollouts start theirs at once."""
CALL_S = 30.0
EXIT_S = 1.0
"""How long after its socket closed a service's exit status may come."""
_LAUNCH = Path(__file__).with_name("launch.py")
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)
"""Exit statuses of a program that somebody else ended: nobody in a sandbox can, the kernel and people here can."""
_PASSED = ("PATH", "HOME", "LANG", "TMPDIR")


@dataclass(frozen=True)
class Service:
    """A program to start. `health` and `audit` are paths."""

    name: str
    command: str
    port: int
    health: str
    health_method: str
    audit: str | None
    env: Mapping[str, str]


@dataclass(frozen=True)
class Route:
    """Where a tool is served: `port` names the service. `url` is the task's own, for the record."""

    port: int
    path: str
    method: str
    url: str


@dataclass
class _Running:
    service: Service
    process: asyncio.subprocess.Process
    http: aiohttp.ClientSession
    log: Path

    def trouble(self) -> str | None:
        """Why it no longer serves; None while it runs."""
        if self.process.returncode is None:
            return None
        said = self.log.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        return f"service {self.service.name} ended with {self.process.returncode}; it said: {said[0][:300]}"


@dataclass
class _Gate:
    """Passes tool calls on and notes them."""

    running: Mapping[int, _Running]
    routes: Mapping[str, Route]
    calls: list[dict[str, Any]] = field(default_factory=list)
    asked: set[int] = field(default_factory=set)
    broken: dict[int, str] = field(default_factory=dict)

    def lost(self, port: int, why: str) -> InfrastructureError:
        """What to raise for a service that is lost."""
        killed = self.running[port].process.returncode in _KILLED
        return ServiceDied(why) if port in self.asked and not killed else InfrastructureError(why)

    async def answer(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        route = self.routes.get(name)
        if route is None:
            return web.json_response({"error": f"there is no command {name!r}"}, status=404)
        if len(self.calls) >= MAX_CALLS:
            return web.json_response({"error": f"no more than {MAX_CALLS} calls of commands"}, status=429)
        try:
            body = await request.json()
            if not isinstance(body, dict):
                raise ValueError
        except ValueError:
            return web.json_response({"error": "the arguments must be a JSON object"}, status=400)
        self.asked.add(route.port)
        started = time.monotonic()
        status, said = await self._ask(self.running[route.port], route, body)
        self.calls.append(
            {
                "tool_name": name,
                "endpoint_url": route.url,
                "request_body": body,
                "response_status": status,
                "response_body": said,
                "latency_ms": round((time.monotonic() - started) * 1000, 1),
            }
        )
        return web.json_response(said, status=status)

    async def _ask(self, to: _Running, route: Route, body: Any) -> tuple[int, Any]:
        try:
            async with to.http.request(route.method, f"http://service{route.path}", json=body) as answer:
                text = await answer.text()
                status = answer.status
        except (aiohttp.ClientError, TimeoutError) as error:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(to.process.wait(), EXIT_S)
            why = to.trouble() or f"service {to.service.name} did not answer: {type(error).__name__}"
            self.broken.setdefault(to.service.port, why)
            return 502, {"error": "the service is away"}
        try:
            return status, json.loads(text)
        except ValueError:
            return status, {"error": text[:1000]}


@contextlib.asynccontextmanager
async def running(
    checkout: Path, services: Sequence[Service], routes: Mapping[str, Route], folder: Path
) -> AsyncIterator[tuple[str, int] | None]:
    """`tasks.beside.Beside.running` for ClawEval."""
    folder.mkdir(parents=True, exist_ok=True)
    async with contextlib.AsyncExitStack() as stack:
        sockets = Path(stack.enter_context(TemporaryDirectory(prefix="openforge-claw-")))
        started = await asyncio.gather(
            *(_start(stack, checkout, service, sockets, folder) for service in services), return_exceptions=True
        )
        for outcome in started:
            if isinstance(outcome, BaseException):
                raise outcome
        up = {one.service.port: one for one in started if isinstance(one, _Running)}
        gate = _Gate(up, routes)
        address = await _serve(stack, gate) if routes else None
        yield address
        for port, one in up.items():
            if why := gate.broken.get(port) or one.trouble():
                raise gate.lost(port, why)
        audit = {one.service.name: await _audit(one, gate) for one in up.values() if one.service.audit}
        (folder / DISPATCHES).write_text(json.dumps(gate.calls))
        (folder / AUDIT).write_text(json.dumps(audit))


async def _serve(stack: contextlib.AsyncExitStack, gate: _Gate) -> tuple[str, int]:
    app = web.Application(client_max_size=MAX_BODY)
    app.router.add_post("/tools/{name}", gate.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    return host, port


async def _start(
    stack: contextlib.AsyncExitStack, checkout: Path, service: Service, sockets: Path, folder: Path
) -> _Running:
    """Start a service and wait until it is ready. Raises InfrastructureError."""
    program, *arguments = shlex.split(service.command)
    if program not in ("python", "python3"):
        raise ConfigError(f"service {service.name}: its command must start with python, not {program!r}")
    socket, log = sockets / service.name, folder / f"{service.name}.log"
    env = {name: os.environ[name] for name in _PASSED if name in os.environ}
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(python(checkout), str(_LAUNCH), str(socket), *arguments),
            cwd=checkout,
            env={**env, "PYTHONDONTWRITEBYTECODE": "1", **service.env},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    stack.push_async_callback(_stop, process)
    connector = aiohttp.UnixConnector(str(socket))
    http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=CALL_S))
    stack.push_async_callback(http.close)
    one = _Running(service, process, http, log)
    deadline = time.monotonic() + READY_S
    while not await _ready(one):
        if trouble := one.trouble():
            raise InfrastructureError(trouble)
        if time.monotonic() > deadline:
            raise InfrastructureError(f"service {service.name} was not ready within {READY_S:g} s")
        await asyncio.sleep(0.1)
    return one


async def _ready(one: _Running) -> bool:
    """Whether its health check answers. The header keeps a service from injecting an error into it."""
    if not one.http.connector or not Path(str(getattr(one.http.connector, "path", ""))).exists():
        return False
    try:
        url = f"http://service{one.service.health}"
        async with one.http.request(one.service.health_method, url, headers={"X-Health-Check": "1"}) as answer:
            return answer.status < 500
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _audit(one: _Running, gate: _Gate) -> Any:
    try:
        async with one.http.get(f"http://service{one.service.audit}") as answer:
            answer.raise_for_status()
            return await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        why = f"service {one.service.name}: its audit cannot be read: {error}"
        raise gate.lost(one.service.port, why) from None


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


def python(checkout: Path) -> str:
    """The interpreter for the checkout's programs: of its own environment if it has one, else ours."""
    own = checkout / ".venv/bin/python"
    return str(own) if own.exists() else sys.executable
