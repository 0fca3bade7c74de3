import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from tests.training.engines.models import save_model
from training import engines
from training import policy_server
from training.child import free_port
from training.engines import vllm
from training.policy_server import PolicyServer
from training.policy_server import attached_policy_server
from training.policy_server import check_folder
from training.policy_server import check_replacement
from training.policy_server import running_policy_server

ROOT = Path(__file__).resolve().parents[2]
serving = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("models")
    return save_model(place / "first", 1), save_model(place / "second", 2)


def taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def alive(group: int) -> bool:
    """Whether any process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class TestServing:
    pytestmark = serving

    async def test_takes_new_weights_and_is_gone_at_the_end(self, folders: tuple[Path, Path], tmp_path: Path) -> None:
        port = free_port()
        async with running_policy_server("embedded", folders[0], tmp_path / "log", 512, port) as policy:
            assert (policy.version, policy.url) == (0, f"http://127.0.0.1:{port}")
            await policy.reload(folders[1], 4)
            assert (policy.version, policy.folder) == (4, folders[1])
        assert policy.child and not policy.child.alive()
        assert not taken(port)

    async def test_one_that_runs_already_is_attached_to_and_left_running(
        self, folders: tuple[Path, Path], tmp_path: Path
    ) -> None:
        async with running_policy_server("embedded", folders[0], tmp_path / "log", 512) as own:
            await own.reload(folders[1], 4)  # an earlier run's
            async with attached_policy_server(own.url, folders[0]) as policy:
                assert policy.version == -1
                await policy.reload(folders[0], 0)
                assert (policy.version, policy.folder) == (0, folders[0])
            assert own.child and own.child.alive()
        with pytest.raises(InfrastructureError, match=f"nothing answers at {own.url}/health"):
            async with attached_policy_server(own.url, folders[0], start_s=0.2):
                pass

    async def test_server_that_kept_the_old_weights_is_found_out_and_serves_no_more(
        self, folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = PolicyServer._ask

        async def skip_load(self: PolicyServer, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
            return None if path == "/collective_rpc" else await real(self, method, path, body)

        async with running_policy_server("embedded", folders[0], tmp_path / "log", 512) as policy:
            monkeypatch.setattr(PolicyServer, "_ask", skip_load)
            with pytest.raises(InfrastructureError, match="does not serve the weights"):
                await policy.reload(folders[1], 1)
            assert (policy.version, policy.folder) == (0, folders[0])
            assert httpx.get(f"{policy.url}/is_paused", timeout=60).json() == {"is_paused": True}

    async def test_logprobs_from_before_temperature_are_refused(
        self, folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with running_policy_server("embedded", folders[0], tmp_path / "log", 512) as policy:
            real = policy_server._reference
            # Swapping the two temperatures is what a server looks like that leaves temperature out.
            monkeypatch.setattr(policy_server, "_reference", lambda f, p, s, t: real(f, p, s, 1.0 if t != 1 else 0.5))
            with pytest.raises(InfrastructureError, match="before temperature"):
                await policy.check()

    async def test_server_that_dies_tells_its_last_lines(self, folders: tuple[Path, Path], tmp_path: Path) -> None:
        (tmp_path / "broken").mkdir()
        for file in folders[0].iterdir():
            (tmp_path / "broken" / file.name).write_bytes(file.read_bytes())
        (tmp_path / "broken" / "config.json").write_text('{"model_type": "no_such_model"}')
        with pytest.raises(InfrastructureError, match="no_such_model"):
            async with running_policy_server("embedded", tmp_path / "broken", tmp_path / "log", 512):
                pass

    @pytest.mark.timeout(400)
    @pytest.mark.parametrize("kind", engines.NAMES)
    @pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGTERM])
    def test_all_its_processes_die_with_its_parent(
        self, folders: tuple[Path, Path], tmp_path: Path, kind: str, blow: int
    ) -> None:
        if kind == "vllm" and vllm.python() is None:
            pytest.skip(f"vLLM is not installed (`make engine-vllm`, or set {vllm.PYTHON})")
        script = (
            "import asyncio, pathlib\n"
            "from training.policy_server import running_policy_server\n"
            "async def main():\n"
            f"    async with running_policy_server({kind!r}, pathlib.Path({str(folders[0])!r}),\n"
            f"                                     pathlib.Path({str(tmp_path / 'log')!r}), 512) as policy:\n"
            "        print(policy.child.process.pid, flush=True)\n"
            "        await asyncio.sleep(100)\n"
            "asyncio.run(main())\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ
        ) as parent:
            assert parent.stdout is not None
            group = int(parent.stdout.readline())
            assert alive(group)
            parent.send_signal(blow)
            parent.wait(10)
        deadline = time.monotonic() + 30
        while alive(group) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not alive(group)


async def test_port_in_use_is_named(folders: tuple[Path, Path], tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}: Address already in use"):
            async with running_policy_server("embedded", folders[0], tmp_path / "log", 512, port):
                pass


async def test_unknown_engine_names_those_there_are(folders: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="embedded, vllm"):
        async with running_policy_server("sglang", folders[0], tmp_path / "log", 512):
            pass


async def test_vllm_that_is_not_installed_says_how_to_get_it(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENFORGE_VLLM_PYTHON", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="make engine-vllm"):
        async with running_policy_server("vllm", folders[0], tmp_path / "log", 512):
            pass


def test_folder_is_read_by_its_index_when_it_has_one(folders: tuple[Path, Path], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(folders[0]).save_pretrained(tmp_path, max_shard_size="200KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert check_folder(tmp_path) == check_folder(folders[0])
    next(tmp_path.glob("model-00002*")).unlink()
    with pytest.raises(ConfigError, match="not a whole model folder"):
        check_folder(tmp_path)


def test_another_architecture_is_refused_with_the_tensor_named(folders: tuple[Path, Path], tmp_path: Path) -> None:
    check_replacement(folders[1], folders[0])
    with pytest.raises(ConfigError, match=r"lm_head\.weight is \(512, 128\), served is \(512, 64\)"):
        check_replacement(save_model(tmp_path / "wide", 1, hidden=128), folders[0])
