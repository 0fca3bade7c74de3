"""veRL's trainer stays between updates and loads once; where it cannot go on, another begins from the checkpoint."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.epochs import record
from tests.support.epochs import weights
from tests.support.policy import save_policy
from training import standing

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

SETTINGS = {"trainer": "main_ppo", "device": "cpu", "threads": 1, "learning_rate": 1e-2, "kl_coef": 0.1}


class Resident:
    """The training process of the run in `folder`."""

    def __init__(self, folder: Path, **env: str) -> None:
        self._folder = folder
        self._log = folder / "log"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "training.resident"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("a"),
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | env,
        )

    def ask(self, recorded: dict[str, Any], resume: str | None) -> int:
        """The exit code of an epoch's update."""
        job = recorded | {"base_model": str(self._folder / "base"), "resume": resume, "seed": 7, "settings": SETTINGS}
        job |= {"checkpoint_dir": str(self._folder / "checkpoints"), "result": str(self._folder / "result.json")}
        file = self._folder / "job.json"
        file.write_text(json.dumps(job))
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def do(self, recorded: dict[str, Any], resume: str | None) -> dict[str, Any]:
        """The result of an epoch's update."""
        assert self.ask(recorded, resume) == 0, self._log.read_text()
        found: dict[str, Any] = json.loads((self._folder / "result.json").read_text())
        return found

    def end(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)
        self.process.communicate()


def workers(owner: int) -> set[int]:
    """The processes that hold the model, of the Ray that process `owner` started."""
    found = [child.as_dict(["pid", "cmdline"]) for child in psutil.Process(owner).children(recursive=True)]
    return {each["pid"] for each in found if (each["cmdline"] or [""])[0].startswith("ray::WorkerDict")}


def ended(pids: set[int]) -> bool:
    """Whether these processes end, now or soon."""
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return not psutil.wait_procs(left, timeout=60)[1]


def test_it_loads_once_and_begins_anew_from_the_checkpoint_where_it_must(tmp_path: Path) -> None:
    base = save_policy(tmp_path / "base")
    epochs = [record(tmp_path, base, epoch, [1.0, 0.0, 0.5]) for epoch in (1, 2, 3)]
    resident, log = Resident(tmp_path), tmp_path / "log"
    first = resident.do(epochs[0], None)["checkpoint"]
    loaded = workers(resident.process.pid)
    assert len(loaded) == 1
    assert {psutil.Process(pid).nice() for pid in loaded} == {os.nice(0)}  # what else runs must not starve it
    (base / "model.safetensors").rename(tmp_path / "hidden")  # there is nothing to load it from
    second = weights(resident.do(epochs[1], first))
    assert workers(resident.process.pid) == loaded

    assert resident.ask(epochs[0], None) == 3  # it is not what this one begins from, and another cannot begin
    assert "InfrastructureError: main_ppo: OSError: Error no file named model.safetensors" in log.read_text()
    assert ended(loaded | workers(resident.process.pid))
    (tmp_path / "hidden").rename(base / "model.safetensors")

    again = resident.do(epochs[1], first)
    assert weights(again) == second
    (worker,) = workers(resident.process.pid)
    assert worker not in loaded
    psutil.Process(worker).kill()
    third = resident.do(epochs[2], again["checkpoint"])
    assert weights(third) != second
    assert [path.name for path in Path(third["checkpoint"]).glob("trainer/global_step_*")] == ["global_step_3"]
    assert not workers(resident.process.pid) & {worker, *loaded}

    of_ray = psutil.Process(resident.process.pid).children(recursive=True)
    told = [part for process in of_ray for part in process.as_dict(["cmdline"])["cmdline"] or ()]
    folder = Path(next(part.removeprefix("--temp-dir=") for part in told if part.startswith("--temp-dir=")))
    assert folder.is_dir()
    resident.end(signal.SIGTERM)
    assert ended({process.pid for process in of_ray})
    assert not folder.exists()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """A Ray that no update started, with the slots of one rank: its process and its address."""
    program = (
        "import ray, sys\nfound = ray.init(num_cpus=7, num_gpus=1, include_dashboard=False, _temp_dir=sys.argv[1])\n"
        "print('at', found.address_info['address'], flush=True)\nsys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, f"/tmp/ray-{os.getpid()}"],  # Ray's sockets need a short folder
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ
        | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(standing.ROOT)},
    )
    assert process.stdout is not None
    address = next(line.split()[1] for line in process.stdout if line.startswith("at "))
    yield process.pid, address
    process.communicate()
    shutil.rmtree(f"/tmp/ray-{os.getpid()}")


def test_on_a_cluster_it_outlives_a_flow_that_was_killed_and_ends_with_one_that_ends(
    tmp_path: Path, cluster: tuple[int, str]
) -> None:
    owner, address = cluster
    base = save_policy(tmp_path / "base")
    epochs = [record(tmp_path, base, epoch, [1.0, 0.0, 0.5]) for epoch in (1, 2)]
    killed = Resident(tmp_path, RAY_ADDRESS=address)
    first = killed.do(epochs[0], None)
    loaded = workers(owner)
    assert len(loaded) == 1
    killed.end(signal.SIGKILL)

    resident = Resident(tmp_path, RAY_ADDRESS=address)
    second = resident.do(epochs[1], first["checkpoint"])
    assert weights(second) != weights(first)
    assert workers(owner) == loaded

    other = tmp_path / "other"  # veRL's queues would be one
    other.mkdir()
    save_policy(other / "base")
    beside = Resident(other, RAY_ADDRESS=address)
    assert beside.ask(epochs[0], None) == 2
    assert "ConfigError: RAY_ADDRESS: another run trains on this cluster" in (other / "log").read_text()
    beside.end(signal.SIGTERM)
    assert workers(owner) == loaded

    resident.end(signal.SIGTERM)
    assert ended(loaded)
