"""The services of the small checkout, for real: the program, its socket, the gate."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from proxy_addons.errors import InfrastructureError
from tasks.adapters import claweval
from tasks.adapters.claweval.sheet import Sheet
from tasks.beside import ServiceDied
from tests.tasks.adapters import checkout


@pytest.fixture
def beside(tmp_path: Path) -> claweval.Beside:
    folder = checkout.make(tmp_path / "checkout")
    record = claweval.read(folder)[0].record
    assert isinstance(record, Sheet)
    return claweval.Beside(folder, record)


async def call(address: tuple[str, int] | None, path: str, body: Any = None) -> tuple[int, Any]:
    assert address
    url = f"http://{address[0]}:{address[1]}{path}"
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as answer:
        return answer.status, await answer.json() if "json" in answer.content_type else None


def programs() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "launch.py" in " ".join(child.cmdline())]


async def test_tools_pass_and_are_noted(beside: claweval.Beside, tmp_path: Path) -> None:
    async with beside.running(tmp_path / "out") as address:
        assert await call(address, "/tools/ledger_list", {}) == (
            200,
            {"entries": [{"id": "a", "paid": 5}, {"id": "b", "paid": 10}]},
        )
        assert (await call(address, "/tools/ledger_flag", {"entry": "z"}))[0] == 404
        assert await call(address, "/tools/ledger_flag", {"entry": "b"}) == (200, {"status": "flagged"})
    noted = json.loads((tmp_path / "out/dispatches.json").read_text())
    assert [(one["tool_name"], one["response_status"]) for one in noted] == [
        ("ledger_list", 200),
        ("ledger_flag", 404),
        ("ledger_flag", 200),
    ]
    assert noted[2]["request_body"] == {"entry": "b"}
    assert noted[2]["endpoint_url"] == "http://localhost:9100/ledger/flag"
    assert json.loads((tmp_path / "out/audit.json").read_text())["ledger"]["flagged"] == ["b"]
    assert not programs()


async def test_nothing_but_the_tools_can_be_reached(beside: claweval.Beside, tmp_path: Path) -> None:
    async with beside.running(tmp_path / "out") as address:
        assert (await call(address, "/tools/ledger_flag", {"entry": "b"}))[0] == 200
        for path in ("/ledger/reset", "/ledger/audit", "/tools/reset", "/tools/..%2Fledger%2Freset"):
            assert (await call(address, path, {}))[0] == 404
        assert (await call(address, "/tools/ledger_flag", ["b"]))[0] == 400
    assert json.loads((tmp_path / "out/audit.json").read_text())["ledger"]["flagged"] == ["b"]


async def test_rollouts_do_not_share_a_service(beside: claweval.Beside, tmp_path: Path) -> None:
    async with beside.running(tmp_path / "one") as one, beside.running(tmp_path / "two") as two:
        await call(one, "/tools/ledger_flag", {"entry": "a"})
        await call(two, "/tools/ledger_flag", {"entry": "b"})
    found = [json.loads((tmp_path / name / "audit.json").read_text())["ledger"]["flagged"] for name in ("one", "two")]
    assert found == [["a"], ["b"]]


async def test_a_service_listens_on_no_port(beside: claweval.Beside, tmp_path: Path) -> None:
    async with beside.running(tmp_path / "out"):
        (program,) = programs()
        assert [found for found in program.net_connections(kind="inet") if found.status == "LISTEN"] == []


async def test_a_service_that_dies_is_our_failure(beside: claweval.Beside, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="service ledger"):
        async with beside.running(tmp_path / "out") as address:
            os.kill(programs()[0].pid, signal.SIGKILL)
            assert (await call(address, "/tools/ledger_list", {}))[0] == 502
    assert not (tmp_path / "out/dispatches.json").exists()


@pytest.mark.parametrize(("asked", "dies"), [(True, "exit(3)"), (True, "kill(9)"), (False, "exit(3)")])
async def test_a_service_that_ends_by_itself_once_it_was_called_may_be_the_agents_doing(
    beside: claweval.Beside, tmp_path: Path, asked: bool, dies: str
) -> None:
    end = "os._exit(3)" if dies == "exit(3)" else "os.kill(os.getpid(), 9)"
    server = beside.checkout / "mock_services/ledger/server.py"
    server.write_text(server.read_text().replace("flagged.append(asked.entry)", end))
    with pytest.raises(InfrastructureError, match="service ledger") as caught:
        async with beside.running(tmp_path / "out") as address:
            if asked:
                assert (await call(address, "/tools/ledger_flag", {"entry": "b"}))[0] == 502
            else:
                (program,) = programs()
                program.send_signal(signal.SIGSEGV)
                while psutil.pid_exists(program.pid):
                    await asyncio.sleep(0.05)
    assert isinstance(caught.value, ServiceDied) == (asked and dies == "exit(3)")
    assert caught.value.error_class == "InfrastructureError"


async def test_a_service_that_does_not_start_says_why(beside: claweval.Beside, tmp_path: Path) -> None:
    (beside.checkout / "tasks/T1_find_twice_paid/fixtures/ledger.json").unlink()
    with pytest.raises(InfrastructureError, match=r"service ledger ended with 1; it said: FileNotFoundError"):
        async with beside.running(tmp_path / "out"):
            raise AssertionError
    assert not programs()


async def test_cancelled_it_leaves_no_program_behind(beside: claweval.Beside, tmp_path: Path) -> None:
    up = asyncio.Event()

    async def forever() -> None:
        async with beside.running(tmp_path / "out"):
            up.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(forever())
    await up.wait()
    assert programs()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not programs()
