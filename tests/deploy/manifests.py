"""What deploy/kubernetes gives a cluster, as data."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy_addons.identity import Rollout
from tasks.doctor import pods as doctor_pods
from tasks.kube import manifest
from tasks.kube.settings import Settings
from tasks.run import ROOT
from tasks.sandboxes import Spec

KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("kind", "aks")
Object = dict[str, Any]


def base() -> list[Object]:
    """The objects of the base's files, before any overlay."""
    files = sorted((KUBERNETES / "base").glob("*.yaml"))
    return [
        item for file in files if file.name != "kustomization.yaml" for item in yaml.safe_load_all(file.read_text())
    ]


@cache
def _rendered(overlay: str) -> str:
    argv = ["kubectl", "kustomize", str(KUBERNETES / "overlays" / overlay)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(overlay: str) -> list[Object]:
    """The objects that `kubectl apply -k` would send; skips the test where there is no kubectl."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    return list(yaml.safe_load_all(_rendered(overlay)))


def flow_job() -> Object:
    """The Job that the worker makes for a flow run, the variables of work-pool.json filled in."""
    pool = json.loads((KUBERNETES / "base" / "work-pool.json").read_text())
    values = {name: each.get("default") for name, each in pool["variables"]["properties"].items()}
    values |= {"image": "openforge/trainer:0.1.0", "name": "run", "command": ["prefect", "flow-run", "execute"]}
    # As the worker does: its own variables come as a list.
    values["env"] = [{"name": "PREFECT_API_URL", "value": "http://prefect-server:4200/api"}]
    return _filled(pool["job_configuration"]["job_manifest"], values)


def _filled(part: Any, values: Object) -> Any:
    if isinstance(part, dict):
        return {key: _filled(value, values) for key, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, values) for value in part]
    if isinstance(part, str) and part.startswith("{{ ") and part.endswith(" }}"):
        return values[part[3:-3]]
    if isinstance(part, str):
        for name, value in values.items():
            part = part.replace("{{ " + name + " }}", str(value))
    return part


def pod_specs(items: list[Object]) -> Iterator[tuple[str, Object, Object]]:
    """(kind/name, pod labels, pod spec) of everything that makes pods."""
    for item in items:
        if item["kind"] in ("Deployment", "StatefulSet", "Job"):
            meta, template = item["metadata"], item["spec"]["template"]
            yield f"{item['kind']}/{meta.get('name', '')}", template["metadata"]["labels"], template["spec"]


def containers(spec: Object) -> list[Object]:
    return [*spec.get("initContainers", ()), *spec["containers"]]


def settings_data(items: list[Object]) -> dict[str, str]:
    """What the ConfigMap of settings.yaml names."""
    (found,) = [i["data"] for i in items if i["kind"] == "ConfigMap" and i["metadata"]["name"] == "openforge"]
    return dict(found)


def _spec(payload: str | None) -> Spec:
    rollout = Rollout("night", 1, "sum", 0, 0)
    here = Path("/nowhere")
    binds = {"/opt/claude-code": here} if payload else {}
    return Spec(rollout.id, ("agent",), {}, here, here, here, binds_ro=binds, payload=payload, rollout=rollout)


def rollout_job(payload: str | None) -> Object:
    """The Job of a rollout in the harness `payload`, of a verifier if None."""
    names = settings_data(base())
    settings = Settings(
        run="night",
        namespace="openforge",
        image=names["task_image"],
        sidecar_image=names["sidecar_image"],
        payloads={"claude_code": names["payload.claude_code"]},
        collector_url="http://10.0.0.1:9200",
        service_account=names["service_account"],
        priority_class=names["priority_class"],
    )
    job = manifest.job(settings, _spec(payload), "launch")
    return job | {"metadata": job["metadata"] | {"namespace": "openforge"}}


def probe_jobs() -> list[Object]:
    """The doctor's Jobs."""
    network = doctor_pods.python_probe("network", "openforge/sidecar:0.1.0", "network", {})
    storage = doctor_pods.python_probe("storage", "openforge/sidecar:0.1.0", "storage", {}, "runs")
    harness = doctor_pods.harness_probe("harness", "codex", "openforge/codex:0.1.0", "debian:bookworm-slim")
    places = ((network, "openforge"), (storage, "openforge-system"), (harness, "openforge"))
    return [job | {"metadata": job["metadata"] | {"namespace": place}} for job, place in places]
