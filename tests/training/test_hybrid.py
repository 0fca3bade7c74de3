"""The trainer serves the policy that it trains: veRL's replicas, given weights in memory, behind one address.

The replica is `training.replica`'s, since vLLM's wants a GPU; all else is what runs on one.
"""

import asyncio
import signal
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from proxy_addons.engine import EngineAway
from proxy_addons.engine import EngineClient
from proxy_addons.engine import Sampling
from proxy_addons.errors import InfrastructureError
from proxy_addons.wire import Connections
from tests.support.epochs import record
from tests.support.epochs import train
from tests.support.policy import save_policy
from tests.support.resident import Resident
from tests.support.resident import of_ray
from training.child import free_port
from training.policy_server import attached_policy_server

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

SERVED = {"trainer": "main_ppo", "served_len": 64, "kl_coef": 0.1}
SETTINGS = {"device": "cpu", "threads": 1, "learning_rate": 1e-2, "weight_decay": 0.1}


async def test_what_is_trained_is_served_from_memory(tmp_path: Path) -> None:
    base = save_policy(tmp_path / "base")
    epoch = record(tmp_path, base, 1, [1.0, 0.0, 0.5])
    other = str(save_policy(tmp_path / "other", seed=3))  # the reference
    resident = Resident(tmp_path, SETTINGS | SERVED | {"reference_model": other})
    port = free_port()
    serving = resident.job({"rollouts": "", "calls": [], "epoch": 0}, None) | {"result": str(tmp_path / "serving.json")}
    code = await asyncio.to_thread(resident.ask, {"port": port, "begins": serving})
    assert code == 0, (tmp_path / "log").read_text()
    loaded = of_ray(resident.process.pid, "WorkerDict")
    url, short = f"http://127.0.0.1:{port}/0", Sampling(max_tokens=4)
    async with attached_policy_server(url, base) as policy, Connections() as connections:
        client = EngineClient(url, connections)
        await policy.reload(base, 0)  # it samples a probe and compares it with what transformers makes of the folder
        assert of_ray(resident.process.pid, "WorkerDict") == loaded
        assert (await client.generate([1, 2, 3], short)).weight_version == 0
        with pytest.raises(InfrastructureError, match="a trainer serves its run's model"):
            await policy.reload(Path(other), 1)
        await policy.reload(base, 0)

        first = await asyncio.to_thread(resident.do, epoch, None)
        with pytest.raises(EngineAway, match="the policy is not served now: its trainer is at work"):
            await client.generate([1, 2, 3], short)
        await policy.reload(Path(first["hf_path"]), 1)
        assert (await client.generate([1, 2, 3], short)).weight_version == 1
        assert of_ray(resident.process.pid, "WorkerDict") == loaded

        psutil.Process(*of_ray(resident.process.pid, "EmbeddedServer")).kill()
        with pytest.raises(EngineAway, match="replica 0 of the trainer"):
            await client.generate([1, 2, 3], short)
        await policy.reload(Path(first["hf_path"]), 1)  # another begins from the checkpoint, and serves
        assert (await client.generate([1, 2, 3], short)).weight_version == 1
        assert not of_ray(resident.process.pid, "WorkerDict") & loaded
    resident.end(signal.SIGTERM)

    alone = tmp_path / "alone"
    plain = train(tmp_path, epoch, alone, None, kl_coef=0.1, reference_model=other)
    ours, theirs = (load_file(Path(each["hf_path"], "model.safetensors")) for each in (first, plain))
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-5)
