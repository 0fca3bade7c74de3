"""veRL's trainer stays between updates and loads once; where it cannot go on, another begins from the checkpoint."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.epochs import record
from tests.support.epochs import weights
from tests.support.policy import save_policy
from tests.support.resident import Resident
from tests.support.resident import of_ray
from training import standing

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

SETTINGS = {"trainer": "main_ppo", "device": "cpu", "threads": 1, "learning_rate": 1e-2, "kl_coef": 0.1}


def ended(pids: set[int]) -> bool:
    """Whether these processes end, now or soon."""
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return not psutil.wait_procs(left, timeout=60)[1]


def test_it_loads_once_and_begins_anew_from_the_checkpoint_where_it_must(tmp_path: Path) -> None:
    base = save_policy(tmp_path / "base")
    epochs = [record(tmp_path, base, epoch, [1.0, 0.0, 0.5]) for epoch in (1, 2, 3)]
    resident, log = Resident(tmp_path, SETTINGS), tmp_path / "log"
    first = resident.do(epochs[0], None)["checkpoint"]
    loaded = of_ray(resident.process.pid, "WorkerDict")
    assert len(loaded) == 1
    assert {psutil.Process(pid).nice() for pid in loaded} == {os.nice(0)}  # what else runs must not starve it
    (base / "model.safetensors").rename(tmp_path / "hidden")  # there is nothing to load it from
    second = weights(resident.do(epochs[1], first))
    assert of_ray(resident.process.pid, "WorkerDict") == loaded

    assert (
        resident.ask(resident.job(epochs[0], None)) == 3
    )  # it is not what this one begins from, and another cannot begin
    assert "InfrastructureError: main_ppo: OSError: Error no file named model.safetensors" in log.read_text()
    assert ended(loaded | of_ray(resident.process.pid, "WorkerDict"))
    (tmp_path / "hidden").rename(base / "model.safetensors")

    again = resident.do(epochs[1], first)
    assert weights(again) == second
    (worker,) = of_ray(resident.process.pid, "WorkerDict")
    assert worker not in loaded
    psutil.Process(worker).kill()
    third = resident.do(epochs[2], again["checkpoint"])
    assert weights(third) != second
    assert [path.name for path in Path(third["checkpoint"]).glob("trainer/global_step_*")] == ["global_step_3"]
    assert not of_ray(resident.process.pid, "WorkerDict") & {worker, *loaded}

    all_of_ray = psutil.Process(resident.process.pid).children(recursive=True)
    told = [part for process in all_of_ray for part in process.as_dict(["cmdline"])["cmdline"] or ()]
    folder = Path(next(part.removeprefix("--temp-dir=") for part in told if part.startswith("--temp-dir=")))
    assert folder.is_dir()
    resident.end(signal.SIGTERM)
    assert ended({process.pid for process in all_of_ray})
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
    killed = Resident(tmp_path, SETTINGS, RAY_ADDRESS=address)
    first = killed.do(epochs[0], None)
    loaded = of_ray(owner, "WorkerDict")
    assert len(loaded) == 1
    killed.end(signal.SIGKILL)

    resident = Resident(tmp_path, SETTINGS, RAY_ADDRESS=address)
    second = resident.do(epochs[1], first["checkpoint"])
    assert weights(second) != weights(first)
    assert of_ray(owner, "WorkerDict") == loaded

    other = tmp_path / "other"  # veRL's queues would be one
    other.mkdir()
    save_policy(other / "base")
    beside = Resident(other, SETTINGS, RAY_ADDRESS=address)
    assert beside.ask(beside.job(epochs[0], None)) == 2
    assert "ConfigError: RAY_ADDRESS: another run trains on this cluster" in (other / "log").read_text()
    beside.end(signal.SIGTERM)
    assert of_ray(owner, "WorkerDict") == loaded

    resident.end(signal.SIGTERM)
    assert ended(loaded)
