"""The flow on a cluster: two real proxies and a real policy server that run already, pods that are real containers
where there can be any, else processes.

One epoch is run there; the same run is then taken up on this machine, which finds nothing owed, and measures once more,
so that one pass shows that a cluster's records and report are those of the local profile.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from collections.abc import Iterator
from contextlib import AsyncExitStack
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import get_current_settings

from flows import cluster as on_cluster
from flows.config import RunConfig
from flows.config import load_config
from flows.train import openforge
from proxy_addons import records
from proxy_addons.capability import Capability
from proxy_addons.errors import ConfigError
from proxy_addons.packing import read_calls
from tasks import adapters
from tasks import harnesses
from tasks.engines import publish
from tasks.kube import manifest
from tasks.kube import sidecar
from tasks.provider import Provider
from tasks.proxies import TOKEN
from tasks.proxies import Proxies
from tasks.proxy import proxy_python
from tasks.run import MODELS
from tasks.run import ROOT
from tests.kube import containerd
from tests.kube.cluster import Cluster
from tests.kube.cluster import cluster
from tests.kube.kinds import real
from tests.tasks.adapters import checkout
from tests.tasks.kube.support import left
from training.child import free_port
from training.child import free_ports
from training.child import start_child
from training.policy_server import running_policy_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

HOSTS = ["127.0.0.1", "127.0.0.2"]
MODEL = str(MODELS / "tiny")
RUN: dict[str, Any] = {
    "run": "e2e-cluster",
    "model": MODEL,
    "engine": "embedded",
    "harnesses": ["claude_code"],
    "epochs": 1,
    "tasks_per_epoch": 1,
    "group_size": 2,
    "heldout_tasks": 1,
    "heldout_samples": 1,
    "evaluate_last": False,
    "max_model_len": 8192,
    "max_tokens": 160,
    "max_turns": 6,
    "rollout_timeout_s": 60,
    "training": {"device": "cpu", "learning_rate": 6e-5},
    # Pods share here the one port that they have each for themselves in a cluster.
    "concurrency": 1,
}


@dataclass(frozen=True)
class Place:
    cluster: Cluster
    kubernetes: dict[str, Any]
    runs: Path

    def config(self, **given: Any) -> RunConfig:
        at = {"profile": "kubernetes", "kubernetes": self.kubernetes, "runs_dir": str(self.runs)}
        return RunConfig.model_validate(RUN | at | given)


@asynccontextmanager
async def services(folder: Path, kind: str) -> AsyncIterator[Place]:
    """What deploy/kubernetes has running, as processes, and a cluster for the rollouts."""
    port, control, collector, engine = free_ports(4)
    url = f"http://127.0.0.1:{engine}"
    images = {
        "openforge/sidecar:0.1.0": {"/openforge/sidecar.py": Path(sidecar.__file__)},
        "openforge/claude-code:0.1.0": dict(harnesses.load("claude_code").binds(ROOT / harnesses.INSTALL)),
        "debian:bookworm-slim": {},
    }
    async with AsyncExitStack() as stack:
        for host in HOSTS:
            argv = [str(proxy_python(ROOT)), "-m", "proxy_addons", "--host", host, "--port", str(port)]
            argv += ["--control-port", str(control), "--engine", url, "--model", MODEL]
            child = start_child(argv, folder / f"proxy-{host}.log", dict(os.environ), ROOT)
            stack.push_async_callback(asyncio.to_thread, child.stop)
        await stack.enter_async_context(
            running_policy_server("embedded", MODELS / "tiny", folder / "policy.log", 8192, engine)
        )
        c = await stack.enter_async_context(
            cluster(await stack.enter_async_context(real(kind, folder / "pods", images)))
        )
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("KUBECONFIG", str(c.kubeconfig(folder)))
        given = {"proxies": HOSTS, "proxy_port": port, "control_port": control, "collector_port": collector}
        yield Place(c, given | {"policies": [url]}, folder / "runs")


@dataclass(frozen=True)
class Finished:
    folder: Path
    on_cluster: dict[str, Any]
    """The summary that the cluster's part of the run ended with."""
    requests: dict[tuple[str, str], int]
    priorities: set[str]
    left: list[str]
    published: list[Capability]
    """The engine as each proxy sees it after new weights."""


@pytest.fixture(scope="module", autouse=True)
def environment(prefect_server: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        port = free_port()
        patch.setattr(manifest, "PORT", port)
        patch.setattr("tasks.rollout.PROXY_URL", f"http://127.0.0.1:{port}")
        patch.setenv(TOKEN, "the-control-token")
        # The sidecar image's python3 is this one.
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of one epoch on a cluster."""

    async def work() -> Finished:
        kind = "mounted" if containerd.missing() else "containers"
        async with services(tmp_path_factory.mktemp("cluster"), kind) as place:
            priorities: set[str] = set()
            script = place.cluster.script

            async def noted(pod: Any) -> None:
                priorities.add(pod.spec["priorityClassName"])
                await script(pod)

            place.cluster.script = noted
            page = Path(await openforge(place.config()))
            summary = json.loads((page.parent / "summary.json").read_text())
            requests, over = dict(place.cluster.requests), left(place.cluster)
            config = load_config(place.config())
            async with on_cluster.attached(config, "other", MODELS / "tiny") as (policies, proxies):
                with pytest.raises(ConfigError, match=r"another run in .* has the cluster's policy servers"):
                    async with on_cluster.attached(config, "second", MODELS / "tiny"):
                        pass
                assert await publish(proxies, policies, MODELS / "tiny", 7) == {}
                assert isinstance(proxies, Proxies)
                published = [one for each in proxies.replicas for one in await each.capability(8192)]
            return Finished(page.parent, summary, requests, priorities, over, published)

    return asyncio.run(work())


def test_a_whole_epoch_leaves_whole_records_and_nothing_in_the_cluster(finished: Finished) -> None:
    rows = records.read(str(finished.folder / "epoch-001" / "rollouts.parquet"), records.ROLLOUTS)
    assert [(row["sandbox"], row["complete"], row["try"]) for row in rows] == [("kubernetes", True, 0)] * 2
    for row in rows:
        calls = read_calls(row["calls_path"])
        assert len(calls) == row["calls"] > 0
        assert {call["weight_version"] for call in calls} == {0}
        assert {call["logprob_kind"] for call in calls} == {"processed"}
    result = json.loads((finished.folder / "epoch-001" / "train.json").read_text())
    assert result["skipped"] or result["trained_tokens"] > 0
    assert finished.on_cluster["infra_failures"] == 0
    # One for the harness's version, and a harness's and perhaps a verifier's for each of three rollouts.
    assert 4 <= finished.requests["create", "jobs"] <= 7
    assert finished.priorities == {"openforge-rollout"}
    assert finished.left == []


def test_new_weights_reach_every_proxy(finished: Finished) -> None:
    assert [each.weight_version for each in finished.published] == [7, 7]


def test_the_same_run_goes_on_locally_with_the_same_records_and_report(finished: Finished) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.rollout.PROXY_URL", "http://127.0.0.1:8080")
        local = json.loads((finished.folder / "run.json").read_text())["config"]
        local |= {"profile": "local", "evaluate_last": True}
        page = asyncio.run(openforge(RunConfig.model_validate(local)))
    summary = json.loads((Path(page).parent / "summary.json").read_text())
    before, after = (
        records.read(str(finished.folder / name / "rollouts.parquet"), records.ROLLOUTS)
        for name in ("eval-before", "eval-after")
    )
    same = ("run", "task", "sample", "try", "split", "harness", "harness_version", "complete", "chains")
    assert [[row[key] for key in same] for row in before] == [[row[key] for key in same] for row in after]
    assert [row["sandbox"] for row in before] == ["kubernetes"] and after[0]["sandbox"] in ("runc", "bubblewrap")
    assert summary.keys() == finished.on_cluster.keys()
    for key in ("heldout_before", "rollouts_trained", "epochs"):
        assert summary.get(key) == finished.on_cluster.get(key)
    stages = [json.loads(line) for line in (finished.folder / "stages.jsonl").read_text().splitlines()]
    ran = [(line["stage"], line["resumed"], line["owed"]) for line in stages if "owed" in line]
    assert ran == [
        *[("evaluate_before", 0, 1), ("rollout", 0, 2)],
        *[("evaluate_before", 1, 0), ("evaluate_after", 0, 1)],
    ]


FLOW = """
import asyncio, json, sys
import tasks.rollout
from flows.train import openforge
from tasks.kube import manifest
manifest.PORT = int(sys.argv[2])
tasks.rollout.PROXY_URL = f"http://127.0.0.1:{sys.argv[2]}"
asyncio.run(openforge(json.loads(sys.argv[1])))
"""


def test_a_flow_killed_in_its_rollouts_goes_on_and_nothing_is_done_twice(tmp_path: Path) -> None:
    async def work() -> tuple[Path, Cluster, dict[str, float], list[str]]:
        async with services(tmp_path, "mounted") as place:
            config = place.config(run="killed", group_size=3, evaluate_first=False, heldout_tasks=0)
            rollouts = place.runs / "killed" / "epoch-001" / "rollouts"
            # The test's server is a setting of this process alone: a child has to be told of it.
            environment = os.environ | get_current_settings().to_environment_variables(exclude_unset=True)
            given = (config.model_dump_json(exclude_unset=True), str(manifest.PORT))
            flow = await asyncio.create_subprocess_exec(sys.executable, "-c", FLOW, *given, cwd=ROOT, env=environment)

            def in_mid_rollouts() -> bool:
                pods = place.cluster.objects.all("pods", "openforge")
                runs = any(pod["status"]["phase"] == "Running" for pod in pods)
                return runs and len(list(rollouts.glob("*.parquet"))) == 1

            while not in_mid_rollouts():
                assert flow.returncode is None, "the flow ended before it could be killed"
                await asyncio.sleep(0.01)
            flow.send_signal(signal.SIGKILL)
            await flow.wait()
            done = {file.name: file.stat().st_mtime for file in rollouts.glob("*.parquet")}
            orphans = left(place.cluster)
            page = Path(await openforge(config))
            return page.parent, place.cluster, done, orphans

    folder, c, done, orphans = asyncio.run(work())
    assert len(done) == 1 and any(name.startswith("jobs/") for name in orphans), "killed between two rollouts"
    assert left(c) == []
    rows = records.read(str(folder / "epoch-001" / "rollouts.parquet"), records.ROLLOUTS)
    assert [(row["sample"], row["complete"]) for row in rows] == [(0, True), (1, True), (2, True)]
    for name, written in done.items():
        assert (folder / "epoch-001" / "rollouts" / name).stat().st_mtime == written
    stages = [json.loads(line) for line in (folder / "stages.jsonl").read_text().splitlines()]
    ran = [(line["resumed"], line["owed"]) for line in stages if line["stage"] == "rollout"]
    assert ran == [(1, 2)], "the killed flow got no further than its first rollout"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"harnesses": ["gemini_cli"]}, "kubernetes.images: no image is named for the harness gemini_cli; "),
        ({"engine_replicas": 2}, "engine_replicas: a cluster's policy servers are named in kubernetes.policies; "),
        (
            {"harnesses": ["openhands"], "kubernetes": {"images": {"openhands": "openhands:1"}}},
            "harnesses: openhands runs locally only: ",
        ),
    ],
)
def test_what_a_cluster_cannot_do_is_one_line(given: dict[str, Any], line: str) -> None:
    config = load_config({"profile": "kubernetes", "kubernetes": {"proxies": HOSTS}} | given)
    with pytest.raises(ConfigError) as refused:
        on_cluster.settings(config, "r", [harnesses.load(name) for name in config.harnesses], [])
    assert str(refused.value).startswith(line) and len(str(refused.value).splitlines()) == 1


def test_tasks_with_tools_beside_the_sandbox_are_refused_before_the_run(tmp_path: Path) -> None:
    source, judge = f"claweval:{checkout.make(tmp_path / 'checkout')}", Provider(base_url="http://a.test", model="m")
    served, toolless = adapters.load(source, tmp_path / "cache", judge)
    config = load_config({"profile": "kubernetes", "kubernetes": {"proxies": HOSTS}})
    with pytest.raises(ConfigError, match=r"^tasks: 1 of them, t1-find-twice-paid among them, have tools beside the"):
        on_cluster.settings(config, "r", [harnesses.load("codex")], [served, toolless])
    assert on_cluster.settings(config, "r", [harnesses.load("codex")], [toolless])


def test_without_the_proxies_password_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN)
    with pytest.raises(ConfigError, match=f"{TOKEN} is not set"):
        on_cluster.settings(load_config({"profile": "kubernetes"}), "r", [harnesses.load("codex")], [])


def test_pods_are_told_the_address_that_leads_to_the_proxies() -> None:
    given = {"kubernetes": {"proxies": ["127.0.0.2"], "collector_port": 9333}, "profile": "kubernetes"}
    found = on_cluster.settings(load_config(given), "r", [harnesses.load("codex")], [])
    assert (found.collector_url, found.collector_listen[1]) == ("http://127.0.0.1:9333", 9333)
    assert (found.priority_class, found.retry_priority_class) == ("openforge-rollout", "openforge-retry")
    lost = given | {"kubernetes": {"proxies": ["proxy-0.nowhere.invalid"]}}
    with pytest.raises(ConfigError, match=r"kubernetes\.proxies: proxy-0\.nowhere\.invalid is not found from here"):
        on_cluster.settings(load_config(lost), "r", [harnesses.load("codex")], [])
