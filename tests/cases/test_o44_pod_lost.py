"""O44, the cluster's part: whatever a cluster does to a pod ends its try as an infrastructure failure with the reason.

Within a bound, retried as a new try, and never a reward of 0. The local sandboxes' part is in test_o44_sandbox_lost.py.
"""

import asyncio
import re
import time
from pathlib import Path

import pytest

from proxy_addons.errors import InfrastructureError
from tasks import harnesses
from tasks.kube.settings import Bounds
from tests.kube import scripts
from tests.kube.kubelet import Script
from tests.kube.pods import Pod
from tests.tasks.kube.support import again
from tests.tasks.kube.support import backend
from tests.tasks.kube.support import delivers
from tests.tasks.kube.support import result
from tests.tasks.kube.support import settings
from tests.tasks.kube.support import spec

BOUND_S = 5.0

LOST = {
    "evicted": (scripts.evicted(), "(Evicted|TerminationByKubelet): The node was low on resource: memory"),
    "deadline of the pod": (scripts.deadline_exceeded(), "DeadlineExceeded: Pod was active on the node longer"),
    "node lost": (scripts.node_lost(), "(NodeLost: Node node-1|DeletionByTaintManager: Taint manager)"),
    "preempted": (scripts.preempted(), "PreemptionByScheduler: default-scheduler: preempting"),
    "deleted from outside": (scripts.deleted(), "Deleted: somebody else"),
    "gone with no last event": (
        scripts.vanishes(),
        "(Gone: the pod is not there any more|Deleted: somebody else deleted the Job)",
    ),
}


def _class(outcome: object) -> str | None:
    return harnesses.end(harnesses.load("codex"), outcome, 3, "http://127.0.0.1:8080/r/x").error_class  # type: ignore[arg-type]


@pytest.mark.parametrize(("script", "words"), LOST.values(), ids=LOST.keys())
async def test_o44_a_pod_taken_away_is_an_infrastructure_failure(script: Script, words: str, tmp_path: Path) -> None:
    async with backend(scripts.in_turn(script, delivers()), silence_s=1.0) as (c, sandbox):
        start = time.monotonic()
        lost = await sandbox.run(spec(tmp_path))
        took = time.monotonic() - start
        second = await sandbox.run(again(spec(tmp_path)))
        for pod in c.objects.all("pods", "openforge"):  # a lost node's pod stays until somebody forces it
            c.objects.delete("pods", "openforge", pod["metadata"]["name"], grace_s=0)
    assert (lost.reason, lost.exit_code, _class(lost)) == ("lost", None, "InfrastructureError")
    assert re.match(words, lost.detail)
    assert took < BOUND_S
    assert (second.reason, second.exit_code) == ("exited", 0)


def _oom(pod: Pod) -> None:
    pod.exited(137, "OOMKilled", container="agent")
    pod.exited(0, container="sidecar")


def _node_oom(pod: Pod) -> None:
    pod.exited(137, "Error", container="agent")
    pod.exited(0, container="sidecar")


async def test_o44_its_own_memory_limit_is_told_from_the_nodes(tmp_path: Path) -> None:
    one, two = delivers(body=result(""), end=_oom), delivers(body=result(""), end=_node_oom)
    async with backend(scripts.in_turn(one, two)) as (_, sandbox):
        own = await sandbox.run(spec(tmp_path, memory_mb=512))
        node = await sandbox.run(spec(tmp_path, sample=1))
    assert (own.reason, own.detail) == ("oom", "killed at the memory limit of 512 MB")
    assert (node.reason, node.detail) == ("killed", "ended by signal 9 (Error)")
    assert _class(own) == _class(node) == "InfrastructureError"


async def test_o44_a_killed_pod_without_a_result(tmp_path: Path) -> None:
    async with backend(scripts.oom_killed()) as (_, sandbox):
        outcome = await sandbox.run(spec(tmp_path))
    assert (outcome.reason, _class(outcome)) == ("lost", "InfrastructureError")
    assert "OOMKilled, 137" in outcome.detail


async def test_o44_an_exit_code_is_only_an_exit_code(tmp_path: Path) -> None:
    async with backend(delivers(1, body=result("1"))) as (_, sandbox):
        outcome = await sandbox.run(spec(tmp_path))
    assert (outcome.reason, outcome.exit_code) == ("exited", 1)


NEVER = {
    "no node": (
        scripts.unschedulable(),
        Bounds(schedule_s=0.5),
        "did not start: Unschedulable: 0/1 nodes are available",
    ),
    "no secret": (
        scripts.create_container_config_error(),
        Bounds(config_s=0.5),
        'did not start: CreateContainerConfigError: secret "missing" not found for ',
    ),
    "no container": (scripts.waits(), Bounds(create_s=0.5), "did not start: ContainerCreating for "),
    "init container": (scripts.init_exits(1, "fetch"), Bounds(), "did not start: init container fetch ended with 1"),
}


@pytest.mark.parametrize(("script", "bounds", "words"), NEVER.values(), ids=NEVER.keys())
async def test_o44_a_pod_that_never_runs_is_given_up_within_its_bound(
    script: Script, bounds: Bounds, words: str, tmp_path: Path
) -> None:
    async with backend(script, settings(bounds=bounds)) as (_, sandbox):
        with pytest.raises(InfrastructureError) as found:
            await asyncio.wait_for(sandbox.run(spec(tmp_path)), BOUND_S)
    assert words in str(found.value)
