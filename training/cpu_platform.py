"""Where veRL trains: CUDA as veRL ships it, or a CPU through veRL's own extension points.

veRL asks a `Platform` for everything about the device and an `EngineRegistry` for the engine. On a CPU this module
registers a platform "cpu"; the engine is `training.sparse_head` on both. Nothing of veRL is patched. Call
`select_device` before anything else of veRL.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import psutil
import torch
import torch.distributed as dist

from proxy_addons.errors import ConfigError


def select_device(wanted: str) -> str:
    """Make this process train on `wanted` ("auto", "cpu" or "cuda") and return "cpu" or "cuda".

    Raises ConfigError if CUDA is wanted and there is none, or if veRL was already started on the other device.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: 'cuda' was asked for and torch sees no CUDA device; use 'cpu' or 'auto'")
    device = "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"
    os.environ["VERL_PLATFORM"] = "cpu" if device == "cpu" else "nvidia"
    if device == "cpu":
        register_cpu()
    from verl.utils.device import get_device_name

    if get_device_name() != device:
        raise ConfigError(f"device: this process already trains on {get_device_name()}; start another for {device}")
    _register_engine(device)
    _open_process_group(device)
    return device


def join_ray() -> None:
    """Make this process of Ray a rank on the device that VERL_PLATFORM names; veRL has told it its place."""
    if os.environ["VERL_PLATFORM"] == "cpu":
        _register_engine("cpu")
        _open_process_group("cpu")
    else:
        _register_engine("cuda")  # veRL opens the group itself


def rank() -> int:
    """This process's place among those that share an update; 0 also before `select_device`."""
    return dist.get_rank() if dist.is_initialized() else 0


def _open_process_group(device: str) -> None:
    """Open the process group that the environment names (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), or one of this
    process alone. veRL takes a group that is open; its own call would ask for `cpu:gloo,cpu:gloo` on a CPU, which torch
    refuses as a duplicate."""
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        if not dist.is_initialized():
            dist.init_process_group(backend)
        return
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    for name, value in (alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}).items():
        os.environ.setdefault(name, value)
    if not dist.is_initialized():
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


class _CpuDevice(ModuleType):
    """`torch.cpu` plus what veRL asks of any device module. Memory is the process's, in bytes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    @staticmethod
    def empty_cache() -> None:
        """A CPU has no cache of its own to empty."""

    @staticmethod
    def get_device_name(device: Any = None) -> str:
        return "CPU"

    @staticmethod
    def memory_allocated(device: Any = None) -> int:
        return int(psutil.Process().memory_info().rss)

    @staticmethod
    def max_memory_allocated(device: Any = None) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    memory_reserved = memory_allocated
    max_memory_reserved = max_memory_allocated

    @staticmethod
    def reset_peak_memory_stats(device: Any = None) -> None:
        """The kernel keeps the peak of a process; it cannot be reset."""

    @staticmethod
    def mem_get_info(device: Any = None) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    manual_seed = staticmethod(torch.manual_seed)
    manual_seed_all = staticmethod(torch.manual_seed)
    get_rng_state = staticmethod(torch.get_rng_state)
    set_rng_state = staticmethod(torch.set_rng_state)


def register_cpu() -> None:
    """Register platform and engine with veRL. Does nothing the second time."""
    from verl.plugin.platform import PlatformBase
    from verl.plugin.platform import PlatformRegistry

    if PlatformRegistry.get("cpu") is not None:
        return

    @PlatformRegistry.register(platform="cpu")
    class PlatformCpu(PlatformBase):
        device_name = "cpu"
        vendor_name = "cpu"
        device_module = _CpuDevice("openforge_cpu_device")

        def is_available(self) -> bool:
            return True

        def current_device(self) -> Any:
            return "cpu"  # veRL hands it to torch as a device

        def device_count(self) -> int:
            return 1

        def set_device(self, device_index: int) -> None: ...

        def synchronize(self, device_index: int | None = None) -> None: ...

        def manual_seed(self, seed: int) -> None:
            torch.manual_seed(seed)

        def manual_seed_all(self, seed: int) -> None:
            torch.manual_seed(seed)

        def set_allocator_settings(self, settings: str) -> None: ...

        def empty_cache(self) -> None: ...

        def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
            return None, None

        def communication_backend_name(self) -> str:
            return "gloo"

        def visible_devices_envvar(self) -> str:
            return "VERL_CPU_VISIBLE_DEVICES"

        @contextmanager
        def nvtx_range(self, msg: str) -> Iterator[None]:
            yield

        def profiler_start(self) -> None: ...

        def profiler_stop(self) -> None: ...

        def ray_resource_name(self) -> str:
            return "GPU"  # Ray's logical slot: veRL's resource pools count no other

        def ray_noset_envvars(self) -> list[str]:
            return []

        def is_ipc_supported(self) -> bool:
            return False

        def cudart(self) -> Any:
            return None


@cache
def _register_engine(device: str) -> None:
    """Have veRL take our engine. One that is registered for a vendor goes before veRL's own for the device."""
    from verl.utils.device import get_vendor
    from verl.workers.engine.base import EngineRegistry

    from training.sparse_head import SparseHeadEngine

    register = EngineRegistry.register(model_type="language_model", backend="fsdp2", device=device, vendor=get_vendor())
    register(SparseHeadEngine)
