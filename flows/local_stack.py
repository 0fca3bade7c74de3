"""`make train`: a Prefect server and worker on this machine, and one run of `openforge/train` followed to its end.

    python -m flows.local_stack train        # CONFIG='{"epochs": 2}' gives values; KEEP=1 leaves both running
    python -m flows.local_stack warm-start   # the flow warm-start in this process's place; CONFIG gives its values
    python -m flows.local_stack evaluate     # the same with the flow of `openforge/evaluate`; prints its table
    python -m flows.local_stack sft          # the same with the flow of `openforge/sft`
    python -m flows.local_stack curate       # the same with the flow of `openforge/curate`; prints the funnel
    python -m flows.local_stack stop         # ends what KEEP=1, or a killed driver, left running

Everything it writes lies in `.openforge/` below the current folder. A server that already answers at PREFECT_API_URL
is used as it is and never stopped.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import psutil
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import LogFilter
from prefect.client.schemas.filters import LogFilterFlowRunId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.objects import Log
from prefect.client.schemas.sorting import LogSort
from prefect.states import Cancelling
from rich.console import Console
from rich.text import Text

from flows.config import RunConfig
from flows.config import load_config
from flows.config import new_run_name
from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from proxy_addons.errors import OpenForgeError
from tasks.report import percent
from tasks.run import exclusive
from training.child import free_port

POOL = "openforge-local"
DEPLOYMENT = "openforge/train"
SERVER_START_S = 180
CANCEL_S = 60
STOP_S = 20

console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Stack:
    """The local stack's place: project folder and Prefect API address."""

    root: Path
    api: str

    @property
    def state(self) -> Path:
        return self.root / ".openforge"

    @property
    def pids(self) -> Path:
        return self.state / "stack.json"

    def log(self, name: str) -> Path:
        return self.state / "logs" / f"{name}.log"

    def env(self) -> dict[str, str]:
        """Environment of the Prefect processes we start: this server, no telemetry, short waits, our own folder."""
        return {
            **os.environ,
            "PREFECT_API_URL": self.api,
            "PREFECT_HOME": str(self.state / "prefect"),
            "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(self.state / "results"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
            "PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "0.5",
            "PREFECT_CLI_PROMPT": "false",
            "DO_NOT_TRACK": "1",
        }


def read_given(text: str) -> dict[str, Any]:
    """The values in CONFIG (JSON text, may be empty). Raises ConfigError unless it is one JSON object."""
    try:
        given = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(f"CONFIG is not JSON ({error}); write CONFIG='{{\"epochs\": 2}}'") from None
    if not isinstance(given, dict):
        raise ConfigError(f"CONFIG must be a JSON object such as '{{\"epochs\": 2}}', not {text}")
    return given


def server_answers(api: str) -> bool:
    """Whether a Prefect server answers at `api`.

    Raises ConfigError if something else holds the port, if nothing answers and the address is not this machine's, or
    if it is no address.
    """
    if not _is_address(api):
        raise ConfigError(f"PREFECT_API_URL={api} is no address: write http://HOST:PORT/api, or unset it")
    try:
        version = httpx.get(f"{api}/admin/version", timeout=10).text
    except (httpx.ConnectError, httpx.ConnectTimeout):
        if urlsplit(api).hostname not in ("127.0.0.1", "localhost", "::1"):
            raise ConfigError(f"no Prefect server answers at PREFECT_API_URL={api}: start it, or unset it") from None
        return False
    except httpx.HTTPError as error:
        version = type(error).__name__
    if version.startswith('"3.'):
        return True
    raise ConfigError(
        f"something that is no Prefect 3 server holds {api}: end the program on port {urlsplit(api).port}, "
        f"or choose another with PREFECT_API_URL=http://127.0.0.1:{free_port()}/api"
    )


def _is_address(api: str) -> bool:
    try:
        parts = urlsplit(api)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # its port is none
        return False


@contextlib.contextmanager
def only_one(stack: Stack) -> Iterator[None]:
    """Hold the project's lock. Raises ConfigError if another `make train` has it."""
    stack.state.mkdir(parents=True, exist_ok=True)
    busy = "one of `make train`, `evaluate`, `sft`, `curate`, `warm-start` runs here: wait, or end it with ctrl-C"
    with exclusive(stack.state / "lock", busy):
        yield


def _recorded(stack: Stack) -> dict[str, dict[str, Any]]:
    return json.loads(stack.pids.read_text()) if stack.pids.is_file() else {}


def running(stack: Stack) -> dict[str, psutil.Process]:
    """Our server and worker that still run, by name; a recycled process id is not taken for one of them."""
    found = {}
    for name, entry in _recorded(stack).items():
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(entry["pid"])
            if process.create_time() == entry["started"] and process.status() != psutil.STATUS_ZOMBIE:
                found[name] = process
    return found


def start(stack: Stack, name: str, *arguments: str) -> psutil.Process:
    """Start `prefect ARGUMENTS` in its own session (ctrl-C is ours to handle), its output in a log file."""
    stack.log(name).parent.mkdir(parents=True, exist_ok=True)
    with stack.log(name).open("wb") as log:
        command = [sys.executable, "-m", "prefect", *arguments]
        process = psutil.Popen(
            command,
            cwd=stack.root,
            env=stack.env(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    entries = {key: _recorded(stack)[key] for key in running(stack)}
    entries[name] = {"pid": process.pid, "started": process.create_time(), "api": stack.api}
    temporary = stack.pids.with_suffix(".tmp")
    temporary.write_text(json.dumps(entries))
    temporary.replace(stack.pids)
    return process


def start_server(stack: Stack) -> None:
    """Start the server and wait until it answers. Raises InfrastructureError with its last words if it does not."""
    address = urlsplit(stack.api)
    process = start(
        stack, "server", "server", "start", "--host", str(address.hostname), "--port", str(address.port or 80)
    )
    deadline = time.monotonic() + SERVER_START_S
    while not _healthy(stack.api):
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            raise InfrastructureError(f"the Prefect server ended at once; {_last_words(stack.log('server'))}")
        if time.monotonic() > deadline:
            raise InfrastructureError(
                f"the Prefect server did not answer within {SERVER_START_S} s; {stack.log('server')}"
            )
        time.sleep(0.3)


def _healthy(api: str) -> bool:
    try:
        return httpx.get(f"{api}/health", timeout=10).status_code == 200
    except httpx.HTTPError:
        return False


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"{log} ends with:\n" + "\n".join(lines[-8:])


def prefect(stack: Stack, *arguments: str) -> None:
    """Run one Prefect command to its end. Raises InfrastructureError with its output if it fails."""
    console.print(f"  prefect {' '.join(arguments)}", style="dim", markup=False)
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
        cwd=stack.root,
        env=stack.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise InfrastructureError(
            f"`prefect {' '.join(arguments)}` failed:\n{(done.stdout + done.stderr).strip()[-2000:]}"
        )


def stop(process: psutil.Process) -> None:
    """End a process and all that it started: politely, then by force."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [process, *process.children(recursive=True)]
        process.terminate()
        psutil.wait_procs([process], timeout=STOP_S)
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, timeout=STOP_S)


def stop_all(stack: Stack, names: tuple[str, ...] = ("worker", "server")) -> list[str]:
    """Stop ours among `names`, in that order: a worker whose server has gone ignores the request for minutes."""
    ours = running(stack)
    stopped = [name for name in names if name in ours]
    for name in stopped:
        stop(ours[name])
    return stopped


async def follow(client: PrefectClient, run_id: UUID, worker: psutil.Process) -> FlowRun:
    """Print the run's states and logs until it has ended. Raises InfrastructureError if the worker dies first."""
    shown: set[UUID] = set()
    state: str | None = None
    final_since: float | None = None
    while True:
        run = await client.read_flow_run(run_id)
        if run.state is not None and run.state.is_final():
            final_since = final_since or time.monotonic()
        # A run's last lines reach the server after its last state, but before its process ends.
        over = final_since is not None and (not _children(worker) or time.monotonic() - final_since > STOP_S)
        for log in await _new_logs(client, run_id, shown):
            _print_log(log)
        if run.state is not None and run.state.name != state:
            state = run.state.name
            console.print(f"{datetime.now():%H:%M:%S} {state}", style="bold")
        if over:
            return run
        if not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE:
            raise InfrastructureError("the Prefect worker ended while the run was going on")
        await asyncio.sleep(0.5)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children()
    except psutil.NoSuchProcess:
        return []


async def _new_logs(client: PrefectClient, run_id: UUID, shown: set[UUID]) -> list[Log]:
    new: list[Log] = []
    query = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id]))
    # Lines of different processes arrive out of order, so look back a little.
    offset = max(0, len(shown) - 100)
    while page := await client.read_logs(query, limit=200, offset=offset, sort=LogSort.TIMESTAMP_ASC):
        new += [log for log in page if log.id not in shown]
        shown |= {log.id for log in page if log.id is not None}
        offset += len(page)
    return new


def _print_log(log: Log) -> None:
    style = "red" if log.level >= 40 else "yellow" if log.level >= 30 else ""
    message = log.message.split("\nTraceback")[0]  # the whole of it is in the UI and the worker's log
    console.print(Text(f"{log.timestamp.astimezone():%H:%M:%S} {message}", style=style))


async def run_deployment(stack: Stack, config: dict[str, Any], worker: psutil.Process) -> FlowRun:
    """What `prefect deployment run openforge/train` does, followed to the end; cancelled with us."""
    async with PrefectClient(stack.api) as client:
        deployment = await client.read_deployment_by_name(DEPLOYMENT)
        run = await client.create_flow_run_from_deployment(deployment.id, parameters={"config": config})
        console.print(
            f"  prefect deployment run {DEPLOYMENT} -p config='{json.dumps(config)}'", style="dim", markup=False
        )
        console.print(f"Watch it at {stack.api.removesuffix('/api')}/runs/flow-run/{run.id}", markup=False)
        following = asyncio.create_task(follow(client, run.id, worker))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, following.cancel)
        try:
            return await following
        except asyncio.CancelledError:
            console.print("Cancelling the run; it removes its sandboxes first.")
            await client.set_flow_run_state(run.id, Cancelling())
        try:
            return await asyncio.wait_for(follow(client, run.id, worker), CANCEL_S)
        except TimeoutError:
            raise InfrastructureError(f"the run did not stop within {CANCEL_S} s, so its worker is killed") from None


def train(stack: Stack, given: dict[str, Any], keep: bool) -> int:
    """Start what is missing, run the deployment, stop what was started. Returns the exit status."""
    given = {**given, "run": given.get("run") or new_run_name(datetime.now())}
    config = load_config(given)
    started: list[str] = []
    with only_one(stack):
        _check_leftovers(stack)
        try:
            _ensure_server(stack, started)
            prefect(stack, "work-pool", "create", POOL, "--type", "process", "--overwrite")
            prefect(stack, "deploy", "--all")
            worker = running(stack).get("worker")
            if worker is None:
                started.append("worker")
                worker = start(stack, "worker", "worker", "start", "--pool", POOL, "--limit", "1")
            else:
                console.print("Using the worker that already runs; `make stop` ends it.")
            run = asyncio.run(run_deployment(stack, given, worker))
        finally:
            if not keep:
                stop_all(stack, tuple(reversed(started)))
    return _conclude(stack, config, run, keep)


def run_here(stack: Stack, module: str, given: dict[str, Any]) -> int:
    """Run the flow in `module` beside a server that is started if there is none. Returns the exit status."""
    started: list[str] = []
    with only_one(stack):
        _check_leftovers(stack)
        try:
            _ensure_server(stack, started)
            flow = [sys.executable, "-m", module, json.dumps(given)]
            return subprocess.run(flow, cwd=stack.root, env=stack.env()).returncode
        finally:
            stop_all(stack, tuple(started))


def _ensure_server(stack: Stack, started: list[str]) -> None:
    if not server_answers(stack.api):
        console.print(f"Starting the Prefect server at {stack.api} (log: {stack.log('server')})")
        started.append("server")
        start_server(stack)


def _check_leftovers(stack: Stack) -> None:
    for name in running(stack):
        api = _recorded(stack)[name]["api"]
        if api != stack.api:
            raise ConfigError(f"a {name} for {api} still runs: `make stop` ends it; or set PREFECT_API_URL={api}")


def _conclude(stack: Stack, config: RunConfig, run: FlowRun, keep: bool) -> int:
    folder = stack.root / config.runs_dir / str(config.run)
    if (folder / "report.html").is_file():
        summary = json.loads((folder / "summary.json").read_text())
        before, after = percent(summary["heldout_before"]), percent(summary["heldout_after"])
        console.print(f"Held-out success before: {before}; after: {after}", markup=False)
        console.print(f"Report: {folder / 'report.html'}", markup=False)
    if keep:
        console.print("The server and worker go on running; `make stop` ends them.")
    state = run.state
    if state is not None and state.is_completed():
        console.print("Done.", style="green")
        return 0
    name, message = (state.name, state.message) if state is not None else ("Unknown", None)
    _say(f"The run ended as {name}: {message or 'no reason given'}. Worker log: {stack.log('worker')}")
    return 130 if name == "Cancelled" else 1


def _say(line: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(line, style="red", markup=False)


def main(arguments: list[str]) -> int:
    """Run one of the commands; every expected failure is one line on standard error."""
    stack = Stack(Path.cwd(), (os.environ.get("PREFECT_API_URL") or "http://127.0.0.1:4200/api").rstrip("/"))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # so that being ended, too, stops what was started
    try:
        match arguments:
            case ["train"]:
                return train(stack, read_given(os.environ.get("CONFIG", "")), os.environ.get("KEEP") == "1")
            case ["warm-start" | "evaluate" | "sft" | "curate" as flow]:
                module = f"flows.{flow.replace('-', '_')}"
                return run_here(stack, module, read_given(os.environ.get("CONFIG", "")))
            case ["stop"]:
                console.print(f"Stopped: {', '.join(stop_all(stack)) or 'nothing was running'}")
                return 0
        _say("usage: python -m flows.local_stack train|warm-start|evaluate|sft|curate|stop")
        return 2
    except OpenForgeError as error:
        _say(str(error))
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        _say("Interrupted.")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
