"""Our proxy's process comes up, whatever else takes ports meanwhile."""

import socket
from pathlib import Path

import pytest

import tasks.proxy
from proxy_addons.errors import InfrastructureError
from tasks.proxy import STARTS
from tasks.proxy import proxy_python
from tasks.proxy import running_proxy
from tasks.run import MODELS
from tasks.run import ROOT
from training.child import free_ports

pytestmark = pytest.mark.timeout(300)
NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize("taken", [0, 1, 2], ids=["harness", "control", "egress"])
async def test_a_port_that_was_taken_meanwhile_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        first = free_ports(3)
        first[taken] = other.getsockname()[1]
        given = iter([first])
        monkeypatch.setattr(tasks.proxy, "free_ports", lambda count: next(given, None) or free_ports(count))
        async with running_proxy(proxy_python(ROOT), [NOWHERE], MODELS / "tiny", tmp_path / "proxy.log") as proxy:
            assert proxy.child.alive() and proxy.address[1] not in first
    assert next(given, None) is None  # the taken one was tried


async def test_a_proxy_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()

        def all_taken(count: int) -> list[int]:
            tries.append(count)
            harness, egress = free_ports(2)
            return [harness, other.getsockname()[1], egress]

        monkeypatch.setattr(tasks.proxy, "free_ports", all_taken)
        with pytest.raises(InfrastructureError, match="address already in use"):
            async with running_proxy(proxy_python(ROOT), [NOWHERE], MODELS / "tiny", tmp_path / "proxy.log"):
                pass
    assert len(tries) == STARTS
