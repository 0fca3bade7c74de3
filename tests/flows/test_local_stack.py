"""`make train`'s driver: refusals before anything starts, and a toy flow on a real server and worker."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.local_stack import Stack
from flows.local_stack import free_port
from flows.local_stack import only_one
from flows.local_stack import read_given
from flows.local_stack import running
from flows.local_stack import server_answers
from flows.local_stack import stop_all
from proxy_addons.errors import ConfigError

REPO = Path(__file__).parents[2]

TOY_FLOW = """
import json
import time
from pathlib import Path

from prefect import flow

from flows.config import RunConfig


@flow(name="openforge", log_prints=True)
def openforge(config: RunConfig = RunConfig()) -> None:
    print(f"toy run of {config.epochs} epochs")
    if config.epochs == 99:
        raise ValueError("epochs were 99")
    time.sleep(config.seed)
    folder = Path(config.runs_dir) / config.run
    folder.mkdir(parents=True)
    (folder / "report.html").touch()
    rate = {"k": 1, "n": 4, "rate": 0.25, "lo": 0.046, "hi": 0.699}
    (folder / "summary.json").write_text(json.dumps({"heldout_before": rate, "heldout_after": None}))
"""


class _NotPrefect(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def other_program() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _NotPrefect)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/api"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_port_held_by_another_program_is_named(other_program: str) -> None:
    port = other_program.split(":")[2].removesuffix("/api")
    with pytest.raises(ConfigError, match=rf"no Prefect 3 server holds .*: end the program on port {port}, or choose"):
        server_answers(other_program)


@pytest.mark.parametrize(
    "api", ["127.0.0.1:4200/api", "http://127.0.0.1:abc/api", "ftp://127.0.0.1/api", "http:///api"]
)
def test_what_is_no_address_is_told(api: str) -> None:
    with pytest.raises(ConfigError, match="is no address: write http://HOST:PORT/api"):
        server_answers(api)


def test_a_free_local_port_means_no_server_yet() -> None:
    assert server_answers(f"http://127.0.0.1:{free_port()}/api") is False


def test_nothing_is_started_for_another_machines_address() -> None:
    with pytest.raises(ConfigError, match=r"PREFECT_API_URL=http://prefect.invalid:4200/api: start it, or unset it"):
        server_answers("http://prefect.invalid:4200/api")


@pytest.mark.parametrize(("text", "given"), [("", {}), ('{"epochs": 2}', {"epochs": 2})])
def test_config_text(text: str, given: dict[str, Any]) -> None:
    assert read_given(text) == given


@pytest.mark.parametrize("text", ["{epochs", "[1]", "2"])
def test_config_text_that_is_no_object_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\{\"epochs\": 2\}"):
        read_given(text)


def test_a_second_driver_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    stack = Stack(tmp_path, "http://127.0.0.1:1/api")
    with only_one(stack), pytest.raises(ConfigError, match="one of `make train`"), only_one(stack):
        pytest.fail("the lock was given twice")
    with only_one(stack):
        assert running(stack) == {}


def test_a_recycled_process_id_is_not_ours(tmp_path: Path) -> None:
    stack = Stack(tmp_path, "http://127.0.0.1:1/api")
    stack.state.mkdir()
    here = psutil.Process()
    entry = {"pid": here.pid, "started": here.create_time() - 1, "api": stack.api}
    stack.pids.write_text(json.dumps({"worker": entry}))
    assert running(stack) == {}
    assert stop_all(stack) == []


class Toy:
    """A project folder with our prefect.yaml and a toy flow, and the driver run in it."""

    def __init__(self, root: Path) -> None:
        (root / "flows").mkdir()
        (root / "flows" / "train.py").write_text(TOY_FLOW)
        for name in ("evaluate", "curate", "sft"):
            (root / "flows" / f"{name}.py").write_text(TOY_FLOW.replace("def openforge(", f"def {name}("))
        shutil.copy(REPO / "prefect.yaml", root)
        self.port = free_port()
        self.stack = Stack(root, f"http://127.0.0.1:{self.port}/api")

    def start(self, command: str, **env: str) -> subprocess.Popen[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
        return subprocess.Popen(
            [sys.executable, "-m", "flows.local_stack", command],
            cwd=self.stack.root,
            env={**clean, "PREFECT_API_URL": self.stack.api, "PYTHONPATH": str(REPO), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str, **env: str) -> tuple[int, str]:
        process = self.start(command, **env)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    def port_is_free(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) != 0


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    toy = Toy(tmp_path)
    yield toy
    stop_all(toy.stack)


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_kept_stack_is_used_again_and_stop_ends_it(toy: Toy) -> None:
    code, output = toy.run("train", KEEP="1", CONFIG='{"epochs": 3}')
    assert code == 0, output
    assert "toy run of 3 epochs" in output
    assert "Held-out success before: 25.0% [4.6%, 69.9%] (1 of 4); after: –" in output
    assert f"Report: {toy.stack.root}/runs/run-" in output
    first = {name: process.pid for name, process in running(toy.stack).items()}
    assert set(first) == {"server", "worker"}

    code, output = toy.run("train", CONFIG='{"epochs": 99}')
    assert code == 1, output
    assert "The run ended as Failed: Flow run encountered an exception: ValueError: epochs were 99" in output
    assert {name: process.pid for name, process in running(toy.stack).items()} == first

    assert toy.run("stop") == (0, "Stopped: worker, server\n")
    assert running(toy.stack) == {}
    assert toy.port_is_free()


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_ctrl_c_cancels_the_run_and_leaves_nothing_behind(toy: Toy) -> None:
    driver = toy.start("train", CONFIG='{"seed": 300}')
    assert driver.stdout is not None
    seen = ""
    while "toy run of" not in seen:
        line = driver.stdout.readline()
        assert line, seen
        seen += line
    ours = [p for top in running(toy.stack).values() for p in (top, *top.children(recursive=True))]
    assert len(ours) >= 3  # server, worker, flow run

    driver.send_signal(signal.SIGINT)
    started = time.monotonic()
    rest, _ = driver.communicate(timeout=120)
    assert time.monotonic() - started < 90
    assert driver.returncode == 130, seen + rest
    assert "The run ended as Cancelled" in rest
    assert [p for p in ours if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
    assert toy.port_is_free()
