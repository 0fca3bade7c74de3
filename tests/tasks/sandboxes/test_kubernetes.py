"""The contract of the local backends, kept over a cluster."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from proxy_addons.errors import VerifierError
from tasks.kube import manifest
from tasks.sandboxes import Spec
from tasks.sandboxes import choose
from tests.kube import scripts
from tests.kube.pods import Pod
from tests.kube.support import eventually
from tests.tasks.kube.support import QUICK
from tests.tasks.kube.support import Sidecar
from tests.tasks.kube.support import backend
from tests.tasks.kube.support import delivers
from tests.tasks.kube.support import left
from tests.tasks.kube.support import result
from tests.tasks.kube.support import settings
from tests.tasks.kube.support import spec


async def test_exit_code_output_and_workspace(tmp_path: Path) -> None:
    one = spec(tmp_path)
    (one.workspace / "given.txt").write_text("given")
    (one.home / ".settings").write_text("set")
    seen: list[dict[str, bytes]] = []
    files = {"stdout": b"hi\n", "stderr": b"oh\n", "workspace/made.txt": b"made\n"}
    async with backend(delivers(3, body=result("3", files=files), seen=seen)) as (c, sandbox):
        outcome = await sandbox.run(one)
        assert left(c) == []
    assert (outcome.reason, outcome.exit_code) == ("exited", 3)
    assert (outcome.stdout_path.read_text(), outcome.stderr_path.read_text()) == ("hi\n", "oh\n")
    assert {path.name for path in one.workspace.iterdir()} == {"made.txt"}
    assert (seen[0]["workspace/given.txt"], seen[0]["home/.settings"]) == (b"given", b"set")
    assert b"the-policy-key" in seen[0]["control/run"]


async def test_a_rollout_costs_three_requests(tmp_path: Path) -> None:
    async with backend(delivers()) as (c, sandbox):
        await sandbox.run(spec(tmp_path))
        before = c.requests.copy()
        await sandbox.run(spec(tmp_path, sample=1))
        asked = c.requests - before
    assert {kind: n for kind, n in asked.items() if kind[0] != "watch"} == {
        ("create", "jobs"): 1,
        ("create", "secrets"): 1,
        ("delete", "jobs"): 1,
    }


async def test_nothing_secret_in_the_cluster_but_the_pods_own_key(tmp_path: Path) -> None:
    async with backend(delivers(after=5)) as (c, sandbox):
        running = asyncio.create_task(sandbox.run(spec(tmp_path)))
        await eventually(lambda: c.objects.all("secrets", "openforge"))
        everything = str([c.objects.all(kind, "openforge") for kind in ("jobs", "pods", "secrets")])
        (one,) = c.objects.all("secrets", "openforge")
        (job,) = c.objects.all("jobs", "openforge")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert "the-policy-key" not in everything
    assert list(one["data"]) == ["key"]
    assert one["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]


async def test_what_the_sidecar_ended(tmp_path: Path) -> None:
    late = result(reason="timeout", files={"workspace/half.txt": b"half"})
    silent = result(reason="no_call", files={"stdout": b"Trust this folder?\n"})
    async with backend(scripts.in_turn(delivers(124, body=late), delivers(124, body=silent))) as (_, sandbox):
        one, two = spec(tmp_path, wall_s=9), spec(tmp_path, sample=1, first_call_s=7)
        timeout, no_call = await sandbox.run(one), await sandbox.run(two)
    assert (timeout.reason, timeout.detail) == ("timeout", "killed after 9 s")
    assert (one.workspace / "half.txt").read_text() == "half"
    assert no_call.detail == "no model call within 7 s; its last lines: Trust this folder?"


async def test_a_workspace_too_large_has_no_score(tmp_path: Path) -> None:
    async with backend(delivers(body=result(too_large=True, bytes=3 << 30))) as (_, sandbox):
        with pytest.raises(VerifierError, match="the workspace has 3072 MB"):
            await sandbox.run(spec(tmp_path))


async def test_a_pod_without_a_result_is_lost(tmp_path: Path) -> None:
    async with backend(scripts.exits(0)) as (_, sandbox):
        outcome = await sandbox.run(spec(tmp_path))
    assert outcome.reason == "lost"
    assert "sent no result" in outcome.detail


async def test_a_result_may_take_longer_than_an_end(tmp_path: Path) -> None:
    async def script(pod: Pod) -> None:
        await pod.schedule()
        sidecar = Sidecar(pod)
        await sidecar.fetch()
        pod.running()
        pod.exited(3, container="agent")
        await asyncio.sleep(QUICK.record_s + 0.5)
        await sidecar.send(result("3"))
        pod.exited(0, container="sidecar")

    async with backend(script) as (_, sandbox):
        outcome = await sandbox.run(spec(tmp_path))
    assert (outcome.reason, outcome.exit_code) == ("exited", 3)


async def test_an_exit_code_that_an_agent_made_up_is_none(tmp_path: Path) -> None:
    async with backend(delivers(2, body=result("none of your business"))) as (_, sandbox):
        outcome = await sandbox.run(spec(tmp_path))
    assert (outcome.reason, outcome.exit_code) == ("lost", None)
    assert outcome.detail == "its exit code cannot be read: 'none of your business'"


async def test_cancelling_leaves_nothing(tmp_path: Path) -> None:
    async with backend(scripts.exits(0, after=60)) as (c, sandbox):
        running = [asyncio.create_task(sandbox.run(spec(tmp_path, sample=n))) for n in range(8)]
        await eventually(lambda: len(c.objects.all("pods", "openforge")) == 8)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert left(c) == []


async def test_a_cluster_that_refuses_is_told_in_its_own_words(tmp_path: Path) -> None:
    async with backend(delivers()) as (c, sandbox):
        c.faults.answer("POST", "/jobs", 403, message='jobs.batch is forbidden: User "x" cannot create resource "jobs"')
        with pytest.raises(ConfigError, match=r"could not be created: 403 .*cannot create resource"):
            await sandbox.run(spec(tmp_path))


async def test_a_hopeless_image_is_asked_for_once(tmp_path: Path) -> None:
    async with backend(scripts.cannot_pull()) as (c, sandbox):
        for sample in (0, 1):
            with pytest.raises(ConfigError, match="manifest unknown"):
                await sandbox.run(spec(tmp_path, sample=sample))
        assert c.requests["create", "jobs"] == 1


async def test_reap_leaves_other_runs_alone(tmp_path: Path) -> None:
    mine = settings()
    async with backend(scripts.exits(0, after=60), mine) as (c, sandbox):
        running = asyncio.create_task(sandbox.run(spec(tmp_path)))
        await eventually(lambda: c.objects.all("pods", "openforge"))
        assert await asyncio.to_thread(sandbox.reap, "other-e") == []
        assert await asyncio.to_thread(sandbox.reap, "night-e") == ["night-e001-sum-s00-t0"]
        outcome = await running
    assert (outcome.reason, "Deleted" in outcome.detail) == ("lost", True)


def test_without_settings_it_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="use profile kubernetes"):
        choose("kubernetes")


async def test_a_verifier_has_a_pod_of_its_own_and_gets_its_verdict_back(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("workspace", "home", "tests", "verdict")}
    for folder in folders.values():
        folder.mkdir()
    (folders["tests"] / "test.sh").write_text("true\n")
    one = Spec(
        name="night-e001-sum-s00-t0-verify",
        argv=("bash", "/tests/test.sh"),
        env={},
        workspace=folders["workspace"],
        home=folders["home"],
        log_dir=tmp_path / "log",
        binds_ro={"/tests": folders["tests"]},
        binds_rw={"/verdict": folders["verdict"], "/logs/verifier": folders["verdict"]},
    )
    seen: list[dict[str, bytes]] = []
    body = result(files={"rw0/reward.txt": b"0.5"})
    async with backend(delivers(body=body, seen=seen)) as (_, sandbox):
        outcome = await sandbox.run(one)
    assert outcome.reason == "exited"
    assert (folders["verdict"] / "reward.txt").read_text() == "0.5"
    assert seen[0]["ro0/test.sh"] == b"true\n"
    assert manifest.labels(settings(), one)["openforge/role"] == "verifier"


async def test_a_task_with_tools_beside_its_sandbox_is_refused(tmp_path: Path) -> None:
    async with backend(delivers()) as (c, sandbox):
        with pytest.raises(ConfigError, match="has tools beside the sandbox, which only a local one has"):
            await sandbox.run(replace(spec(tmp_path), tools=("127.0.0.1", 1)))
        assert left(c) == []
