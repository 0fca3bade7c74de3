"""The Jobs of the doctor's probes, as JSON data. In the network they count as rollouts, because of their labels."""

import json
from pathlib import Path
from typing import Any

from tasks.doctor import probe
from tasks.doctor.versions import version_command
from tasks.kube.manifest import UID
from tasks.kube.manifest import copy
from tasks.sandboxes import HOME

RUN = "openforge-doctor"
"""What `reap --run` removes if the doctor itself was killed."""
LABELS = {
    "app.kubernetes.io/name": "openforge-rollout",
    "app.kubernetes.io/managed-by": "openforge",
    "openforge/run": RUN,
    "openforge/role": "rollout",
}
_SMALL = {"cpu": "100m", "memory": "128Mi"}
_HARNESS = {"cpu": "1", "memory": "1Gi"}


def python_probe(name: str, image: str, what: str, given: dict[str, Any], claim: str = "") -> dict[str, Any]:
    """A Job that runs `probe.py what given`; `claim` is mounted at /runs."""
    command = ["python3", "-ISB", "-c", Path(probe.__file__).read_text(), what, json.dumps(given)]
    volumes = [{"name": "runs", "persistentVolumeClaim": {"claimName": claim}}] if claim else []
    mounts = [{"name": "runs", "mountPath": "/runs"}] if claim else []
    return _job(name, [], _container("agent", image, command, _SMALL, mounts), volumes)


def harness_probe(name: str, harness: str, payload_image: str, task_image: str) -> dict[str, Any]:
    """A Job that asks the harness in the task image for its version, copied there as in a rollout."""
    words = ["sh", "-c", copy("/opt", "/payload")]
    payload = _container("payload", payload_image, words, _HARNESS, [_at("payload", "/payload")])
    ask = ["sh", "-c", f'"$0" "$@" >{probe.MESSAGE} 2>&1', *version_command(harness)]
    folders = {"payload": "/opt", "home": HOME, "tmp": "/tmp"}
    agent = _container("agent", task_image, ask, _HARNESS, [_at(name, path) for name, path in folders.items()])
    # Not /tmp: Codex says something else first if that is its home.
    agent["env"] = [{"name": "HOME", "value": HOME}]
    return _job(name, [payload], agent, [{"name": name, "emptyDir": {}} for name in folders])


def placed(job: dict[str, Any], service_account: str, priority_class: str) -> dict[str, Any]:
    """The Job with a rollout's account and priority."""
    job["spec"]["template"]["spec"] |= {"serviceAccountName": service_account, "priorityClassName": priority_class}
    return job


def _at(volume: str, path: str) -> dict[str, Any]:
    return {"name": volume, "mountPath": path}


def _job(name: str, init: list[dict[str, Any]], agent: dict[str, Any], volumes: list[dict[str, Any]]) -> dict[str, Any]:
    identity = {"runAsNonRoot": True, "runAsUser": UID, "runAsGroup": UID, "fsGroup": UID}
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {**identity, "seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": init,
        "containers": [agent],
        "volumes": volumes,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": LABELS},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": 900,
            "ttlSecondsAfterFinished": 60,
            "template": {"metadata": {"labels": LABELS}, "spec": pod},
        },
    }


def _container(
    name: str, image: str, command: list[str], resources: dict[str, str], mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "name": name,
        "image": image,
        "command": command,
        "resources": {"requests": resources, "limits": resources},
        "terminationMessagePath": probe.MESSAGE,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }
