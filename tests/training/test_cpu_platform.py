"""Which device veRL trains on is a matter of configuration alone."""

import pytest
import torch

from proxy_addons.errors import ConfigError
from training.cpu_platform import select_device

pytestmark = pytest.mark.timeout(120)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_without_cuda_auto_is_the_cpu_and_cuda_is_refused() -> None:
    assert select_device("auto") == select_device("cpu") == "cpu"
    with pytest.raises(ConfigError, match="device: 'cuda' was asked for and torch sees no CUDA device"):
        select_device("cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_verl_answers_with_the_cpu() -> None:
    select_device("cpu")
    from verl.plugin.platform import get_platform
    from verl.utils.device import get_device_id
    from verl.utils.device import get_torch_device

    platform = get_platform()
    assert (platform.device_name, platform.device_count(), platform.communication_backend_name()) == ("cpu", 1, "gloo")
    assert torch.zeros(1, device=get_device_id()).device.type == "cpu"
    free, total = get_torch_device().mem_get_info()
    assert 0 < free <= total
    assert get_torch_device().memory_allocated() > 1 << 20
    assert torch.distributed.get_world_size() == 1


def test_a_second_device_in_one_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    used = select_device("auto")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: used == "cpu")
    other = "cuda" if used == "cpu" else "cpu"
    with pytest.raises(ConfigError, match=f"this process already trains on {used}"):
        select_device(other)
    monkeypatch.undo()
    assert select_device("auto") == used
