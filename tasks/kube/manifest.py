"""The Job and the Secret of one command in one pod, as JSON data.

Neither holds anything secret or long: command, environment and files come from the collector, and the Secret holds
the one key that opens the collector to this pod. Its owner is the Job, so that it goes with it.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from proxy_addons.errors import ConfigError
from tasks.kube.settings import Settings
from tasks.sandboxes import HOME
from tasks.sandboxes import WORKSPACE
from tasks.sandboxes import Spec
from tasks.verify import MAX_BYTES
from tasks.verify import MAX_DEPTH
from tasks.verify import MAX_FILES
from tasks.verify import MAX_PATH

MANAGED = "app.kubernetes.io/managed-by=openforge"
LAUNCH = "openforge/launch"
"""Annotation: which launch made the Job. A name can be met again, a launch cannot."""
NAME = "openforge/name"
"""Annotation: the whole name, where the object's own had to be cut."""

CONTROL = "/run/openforge"
KEY = "/run/openforge-key"
PORT = 8080
UID = 1000
RESULT_BYTES = MAX_BYTES + (64 << 20)
"""What a result may have in all: the largest workspace that is scored, and room for its output."""
PULL_S, UPLOAD_S = 900, 300
"""What a Job's deadline adds to the command's own time: for its start, and for its end."""
_MAX_NAME = 63
_LAST_LINES = "FallbackToLogsOnError"
"""So that the pod's status says why one of ours failed: its output is read nowhere else."""


def object_name(name: str) -> str:
    """`name` as the name of a Job and the value of a label: DNS-1123, at most 63 letters, a hash where it was cut."""
    safe = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")
    if safe == name and len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{safe[: _MAX_NAME - 13].rstrip('-')}-{digest}".lstrip("-")


def selector(run: str) -> str:
    """The label selector of a run's objects. Raises ValueError for an empty name, which would select all runs."""
    if not run:
        raise ValueError("a run's objects are selected by its name, and it is empty")
    return f"{MANAGED},openforge/run={object_name(run)}"


def labels(settings: Settings, spec: Spec) -> dict[str, str]:
    """What a Job, its pod and its Secret are found by."""
    found = {
        "app.kubernetes.io/name": "openforge-rollout",
        "app.kubernetes.io/managed-by": "openforge",
        "openforge/run": object_name(settings.run),
        "openforge/role": "rollout" if spec.payload else "verifier",
    }
    if spec.rollout:
        found["openforge/group"] = object_name(group(spec))
        found["openforge/rollout"] = object_name(spec.rollout.id)
        found["openforge/try"] = str(spec.rollout.try_)
    return found


def group(spec: Spec) -> str:
    """The prompt group that a rollout belongs to; "" for a verifier."""
    rollout = spec.rollout
    return f"{rollout.run}-e{rollout.epoch:03}-{rollout.task}" if rollout else ""


def job(settings: Settings, spec: Spec, launch: str) -> dict[str, Any]:
    """The Job that runs `spec` once and never again."""
    marks = labels(settings, spec)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _meta(spec, marks, launch),
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": deadline_s(spec),
            "ttlSecondsAfterFinished": settings.ttl_s,
            "template": {
                "metadata": {"labels": marks, "annotations": {LAUNCH: launch, NAME: spec.name}},
                "spec": _pod(settings, spec),
            },
        },
    }


def secret(settings: Settings, spec: Spec, launch: str, owner_uid: str, key: str) -> dict[str, Any]:
    """The Secret with the pod's key for the collector, owned by the Job."""
    meta = _meta(spec, labels(settings, spec), launch)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": owner_uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": meta | {"ownerReferences": [owner]},
        "immutable": True,
        "stringData": {"key": key},
    }


def deadline_s(spec: Spec) -> int:
    """The Job's own deadline: the cluster ends what our sidecar could not."""
    return int(spec.wall_s) + PULL_S + UPLOAD_S


def sidecar_config(settings: Settings, spec: Spec) -> str:
    """The sidecar's one argument; what it means is said in `sidecar.py`."""
    travels = {volume: path for path, (volume, _) in bound(spec).items()}
    config = {
        "collector": settings.collector_url,
        "name": object_name(spec.name),
        "key_file": f"{KEY}/key",
        "folders": {"control": CONTROL, "workspace": WORKSPACE, "home": HOME, **travels},
        "results": ["workspace", *(volume for volume in travels if volume.startswith("rw"))],
        "proxy": spec.proxy,
        "port": PORT,
        "wall_s": spec.wall_s,
        "first_call_s": spec.first_call_s,
        "max_bytes": RESULT_BYTES,
        "bounds": {"depth": MAX_DEPTH, "path": MAX_PATH, "files": MAX_FILES},
    }
    return json.dumps(config)


def bound(spec: Spec) -> dict[str, tuple[str, Path]]:
    """Path inside → (volume, folder here) of the spec's binds that travel; a harness's come from its image instead.

    A folder that is bound at two paths is one volume.
    """
    writable = {source: f"rw{n}" for n, source in enumerate(dict.fromkeys(spec.binds_rw.values()))}
    read_only = {} if spec.payload else spec.binds_ro
    return {
        **{path: (f"ro{n}", source) for n, (path, source) in enumerate(read_only.items())},
        **{path: (writable[source], source) for path, source in spec.binds_rw.items()},
    }


def payload(spec: Spec) -> list[tuple[str, str]]:
    """(volume, path inside) of the harness's folders, which its image has at the same paths."""
    return [(f"payload{n}", path) for n, path in enumerate(spec.binds_ro)] if spec.payload else []


def copy(folder: str, volume: str) -> str:
    """The shell's words that copy what is in `folder` into `volume`. Not -a: it would set the times of the volume
    itself, which is root's, and Debian's cp fails where busybox's warns."""
    return f"cp -RP {folder}/. {volume}/"


def _meta(spec: Spec, marks: dict[str, str], launch: str) -> dict[str, Any]:
    return {"name": object_name(spec.name), "labels": marks, "annotations": {LAUNCH: launch, NAME: spec.name}}


def _pod(settings: Settings, spec: Spec) -> dict[str, Any]:
    copied = [*(volume for volume, _ in bound(spec).values()), *(volume for volume, _ in payload(spec))]
    empty = dict.fromkeys(["control", "workspace", "home", "tmp", *copied])
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": UID,
            "runAsGroup": UID,
            "fsGroup": UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [*_payload(settings, spec), _sidecar(settings, spec, "fetch")],
        "containers": [_agent(settings, spec), _sidecar(settings, spec, "serve")],
        "volumes": [
            *({"name": name, "emptyDir": {}} for name in empty),
            {"name": "key", "secret": {"secretName": object_name(spec.name), "defaultMode": 0o440}},
        ],
    }
    for field, value in (
        ("serviceAccountName", settings.service_account),
        ("runtimeClassName", settings.runtime_class),
        ("priorityClassName", _priority(settings, spec)),
    ):
        if value:
            pod[field] = value
    return pod


def _priority(settings: Settings, spec: Spec) -> str | None:
    again = spec.rollout is not None and spec.rollout.try_ > 0
    return settings.retry_priority_class or settings.priority_class if again else settings.priority_class


def _agent(settings: Settings, spec: Spec) -> dict[str, Any]:
    binds = (_mount(volume, path, volume.startswith("ro")) for path, (volume, _) in bound(spec).items())
    return {
        "name": "agent",
        "image": spec.image or settings.image,
        "command": ["sh", f"{CONTROL}/run", CONTROL, WORKSPACE, HOME],
        "workingDir": WORKSPACE,
        "resources": _agent_resources(spec),
        "securityContext": _locked(),
        "volumeMounts": [
            _mount("control", CONTROL, read_only=True),
            *_own(),
            *binds,
            *(_mount(*each, read_only=True) for each in payload(spec)),
        ],
    }


def _sidecar(settings: Settings, spec: Spec, command: str) -> dict[str, Any]:
    # These are limits too: with a tenth of a CPU Python took 1.5 s to start, twice a pod, and a large result > 60 s.
    # What an init container asks for is free up to what the pod's other containers ask for together.
    cpu = {"fetch": "500m", "serve": "250m"}[command]
    return {
        "name": {"fetch": "fetch", "serve": "sidecar"}[command],
        "image": settings.sidecar_image,
        "command": ["python3", "-ISB", settings.sidecar_script, command, sidecar_config(settings, spec)],
        "terminationMessagePolicy": _LAST_LINES,
        "resources": _resources(cpu=cpu, memory="128Mi"),
        "securityContext": _locked(),
        "volumeMounts": [
            _mount("control", CONTROL),
            *_own(),
            *(_mount(volume, path) for path, (volume, _) in bound(spec).items()),
            _mount("key", KEY, read_only=True),
        ],
    }


def _payload(settings: Settings, spec: Spec) -> list[dict[str, Any]]:
    if not spec.payload:
        return []
    if spec.payload not in settings.payloads:
        raise ConfigError(f"kubernetes.images: no image is named for the harness {spec.payload}")
    copies = " && ".join(copy(path, f"/{name}") for name, path in payload(spec))
    return [
        {
            "name": "payload",
            "image": settings.payloads[spec.payload],
            "command": ["sh", "-c", copies],
            "terminationMessagePolicy": _LAST_LINES,
            "resources": _resources(cpu="500m", memory="256Mi"),
            "securityContext": _locked(),
            "volumeMounts": [_mount(name, f"/{name}") for name, _ in payload(spec)],
        }
    ]


def _own() -> list[dict[str, Any]]:
    return [_mount("workspace", WORKSPACE), _mount("home", HOME), _mount("tmp", "/tmp")]


def _mount(name: str, path: str, read_only: bool = False) -> dict[str, Any]:
    return {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}


def _resources(cpu: str, memory: str) -> dict[str, Any]:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


def _agent_resources(spec: Spec) -> dict[str, Any]:
    resources = _resources(cpu=f"{int(spec.cpus * 1000)}m", memory=f"{spec.memory_mb}Mi")
    # Volumes count too. A disk filled by one rollout would get its neighbours evicted.
    resources["requests"]["ephemeral-storage"] = "64Mi"
    resources["limits"]["ephemeral-storage"] = "4Gi"
    return resources


def _locked() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
