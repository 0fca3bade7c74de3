"""What the programs in the pods are told: arguments that they know, the flags of the engines, Prefect's own files."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.schemas.actions import WorkPoolCreate

from flows.config import load_config
from tasks.doctor.cluster import PROXY_PORT
from tasks.run import ROOT
from tests.deploy.manifests import KUBERNETES
from tests.deploy.manifests import OVERLAYS
from tests.deploy.manifests import Object
from tests.deploy.manifests import base
from tests.deploy.manifests import flow_job
from tests.deploy.manifests import pod_specs
from tests.deploy.manifests import rendered
from tests.deploy.manifests import settings_data
from training.engines import embedded
from training.engines import vllm


def _container(items: list[Object], workload: str) -> Object:
    (spec,) = [spec for name, _, spec in pod_specs(items) if name == workload]
    return dict(spec["containers"][0])


def _flags(argv: Any) -> dict[str, str | None]:
    """`--flag=value`, `--flag value` and `--flag` as a mapping."""
    found: dict[str, str | None] = {}
    last = ""
    for part in map(str, argv):
        if part.startswith("--"):
            last, _, value = part.partition("=")
            found[last] = value or None
        elif last:
            found[last] = part
    return found


def _known(module: str) -> str:
    argv = [sys.executable, "-m", module, "--help"]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_the_proxy_knows_its_arguments() -> None:
    told = _known("proxy_addons")
    for overlay in OVERLAYS:
        flags = _flags(_container(rendered(overlay), "StatefulSet/proxy")["args"])
        assert all(re.search(rf"{flag}\b", told) for flag in flags)
        assert (flags["--host"], flags["--port"], flags["--engine"]) == (
            "0.0.0.0",
            str(PROXY_PORT),
            "http://policy:8200",
        )


def test_vllm_gets_the_engines_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm.PYTHON, "/bin/true")
    launch = vllm.launch(Path("/runs/models/base"), 8200, 32768)
    container = _container(rendered("aks"), "Deployment/policy")
    wanted = _flags(launch.argv[launch.argv.index("-m") :]) | {"--host": "0.0.0.0"}
    assert _flags(container["args"]) == wanted
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert {key: value for key, value in launch.env.items() if key != "VLLM_CPU_KVCACHE_SPACE"}.items() <= env.items()


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_the_embedded_engine_gets_its_own_on_kind() -> None:
    launch = embedded.launch(Path("/runs/models/base"), 8200, 8192)
    container = _container(rendered("kind"), "Deployment/policy")
    assert container["command"] == ["python", *launch.argv[1:3]]
    assert _flags(launch.argv[3:]).items() <= _flags(container["args"]).items()
    assert {entry["name"] for entry in container["env"]} >= launch.env.keys()
    told = _known("training.engines.embedded")
    assert all(re.search(rf"{flag}\b", told) for flag in _flags(container["args"]))
    assert "nvidia.com/gpu" not in str(container["resources"])


def test_the_work_pool_is_one_that_prefect_takes() -> None:
    pool = json.loads((KUBERNETES / "base" / "work-pool.json").read_text())
    WorkPoolCreate(name="openforge", type="kubernetes", base_job_template=pool)
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(pool["job_configuration"])))
    assert used == pool["variables"]["properties"].keys()
    labels = flow_job()["spec"]["template"]["metadata"]["labels"]
    assert labels == {"openforge/part": "flow"}


def test_the_deployments_use_the_pool(overlay: str) -> None:
    file = yaml.safe_load((KUBERNETES / "overlays" / overlay / "prefect.yaml").read_text())
    pool = json.loads((KUBERNETES / "base" / "work-pool.json").read_text())
    (deployment,) = file["deployments"]
    assert deployment["work_pool"]["name"] == "openforge"
    assert deployment["work_pool"]["job_variables"].keys() <= pool["variables"]["properties"].keys()
    path, name = deployment["entrypoint"].split(":")
    assert re.search(rf"^async def {name}\(", (ROOT / path).read_text(), re.M)
    assert deployment["concurrency_limit"] == 1
    config = load_config(deployment["parameters"]["config"])
    assert (config.profile, config.runs_dir) == ("kubernetes", "/runs")


def test_the_flow_finds_what_is_deployed(overlay: str) -> None:
    file = yaml.safe_load((KUBERNETES / "overlays" / overlay / "prefect.yaml").read_text())
    config = load_config(file["deployments"][0]["parameters"]["config"])
    given, items = config.kubernetes, rendered(overlay)
    named = {(item["kind"], item["metadata"]["name"]): item for item in items}
    proxy = named["StatefulSet", "proxy"]
    replicas = range(proxy["spec"]["replicas"])
    assert given.proxies == [f"proxy-{n}.{proxy['spec']['serviceName']}.openforge-system" for n in replicas]
    flags = _flags(_container(items, "StatefulSet/proxy")["args"])
    told = (str(given.proxy_port), str(given.control_port), config.model)
    assert told == (flags["--port"], flags["--control-port"], flags["--model"])
    assert given.policies == [f"{str(flags['--engine']).replace('policy', 'policy.openforge-system')}"]
    assert _flags(_container(items, "Deployment/policy")["args"])["--max-model-len"] == str(config.max_model_len)
    (job,) = flow_job()["spec"]["template"]["spec"]["containers"]
    assert job["ports"] == [{"name": "collector", "containerPort": given.collector_port}]
    assert job["envFrom"] == [{"secretRef": {"name": "openforge-proxy"}}]
    settings = named["ConfigMap", "openforge"]["data"]
    payloads = {f"payload.{name}": image for name, image in given.images.items()}
    rest = ("sidecar_image", "task_image", "priority_class", "service_account")
    assert payloads | {key: getattr(given, key) for key in rest} == {
        key: value for key, value in settings.items() if key in rest or key.startswith("payload.")
    }
    assert ("PriorityClass", given.retry_priority_class) in named
    assert given.namespace == named["ConfigMap", "openforge"]["metadata"]["namespace"]


def test_a_run_takes_the_images_that_are_deployed() -> None:
    names = {key: value for key, value in settings_data(base()).items() if key.startswith("payload.")}
    configured = load_config({"profile": "kubernetes"}).kubernetes
    assert {f"payload.{name}": image for name, image in configured.images.items()} == names
    assert configured.service_account == settings_data(base())["service_account"]
    file = yaml.safe_load((KUBERNETES / "overlays" / "kind" / "prefect.yaml").read_text())
    image = file["deployments"][0]["work_pool"]["job_variables"]["image"]
    assert image == settings_data(base())["trainer_image"]
