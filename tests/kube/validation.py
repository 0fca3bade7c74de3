"""The part of the API server's defaults and checks that a client of pods and Jobs meets."""

import base64
import binascii
import re
import uuid

from tests.kube.objects import Object
from tests.kube.objects import suffix
from tests.kube.resources import ApiError
from tests.kube.resources import Resource
from tests.kube.resources import invalid

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")


def complete(resource: Resource, body: Object) -> None:
    """Fill in defaults in place; raises `ApiError` 400 or 422 for what a real server refuses."""
    if not isinstance(body, dict) or body.get("kind", resource.kind) != resource.kind:
        raise ApiError(400, "BadRequest", f"{resource.kind} in version {resource.api_version!r} cannot be handled")
    meta = body.setdefault("metadata", {})
    name = meta.get("name") or (meta["generateName"] + suffix() if meta.get("generateName") else "")
    if not name:
        raise invalid(resource, "", "metadata.name: Required value: name or generateName is required")
    meta |= {"name": name, "uid": str(uuid.uuid4())}
    meta.pop("resourceVersion", None)
    # A Job's name becomes a label of its pods: it must be short enough for one.
    longest = 63 if resource.plural == "jobs" else 253
    if len(name) > longest or not SUBDOMAIN.fullmatch(name):
        raise invalid(resource, name, f'metadata.name: Invalid value: "{name}": must be a lowercase RFC 1123 subdomain')
    for key, value in (meta.get("labels") or {}).items():
        if not isinstance(value, str) or len(value) > 63 or not VALUE.fullmatch(value):
            raise invalid(resource, name, f'metadata.labels: Invalid value: "{value}": not a valid label value ({key})')
    if resource.plural == "pods":
        _pod(resource, name, body.get("spec") or {}, "spec")
        body["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
    if resource.plural == "jobs":
        _job(resource, name, body)
    if resource.plural == "secrets":
        encode(resource, body)


def _job(resource: Resource, name: str, body: Object) -> None:
    spec = body.get("spec") or {}
    template = spec.get("template") or {}
    pod = template.get("spec") or {}
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        why = 'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'
        raise invalid(resource, name, why)
    _pod(resource, name, pod, "spec.template.spec")
    for key, value in {"backoffLimit": 6, "completions": 1, "parallelism": 1, "suspend": False}.items():
        spec.setdefault(key, value)
    labels = {"controller-uid": body["metadata"]["uid"], "job-name": name}
    labels |= {f"batch.kubernetes.io/{key}": value for key, value in labels.items()}
    meta = template.setdefault("metadata", {})
    meta["labels"] = (meta.get("labels") or {}) | labels
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": body["metadata"]["uid"]}}
    body["status"] = {}


def _pod(resource: Resource, name: str, spec: Object, path: str) -> None:
    containers = spec.get("containers") or []
    if not containers:
        raise invalid(resource, name, f"{path}.containers: Required value")
    volumes = {volume.get("name") for volume in spec.get("volumes", ())}
    names = set()
    for container in [*spec.get("initContainers", ()), *containers]:
        if not LABEL.fullmatch(container.get("name", "")) or len(container["name"]) > 63 or container["name"] in names:
            raise invalid(resource, name, f'{path}.containers.name: Invalid value: "{container.get("name", "")}"')
        if not container.get("image"):
            raise invalid(resource, name, f"{path}.containers.image: Required value")
        for mount in container.get("volumeMounts", ()):
            if mount["name"] not in volumes:
                raise invalid(resource, name, f'{path}.containers.volumeMounts.name: Not found: "{mount["name"]}"')
        if any(not isinstance(entry.get("value", ""), str) for entry in container.get("env", ())):
            raise ApiError(400, "BadRequest", "cannot unmarshal into Go struct field EnvVar.value of type string")
        names.add(container["name"])
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)


def encode(resource: Resource, body: Object) -> None:
    """`stringData` of a Secret, into its `data`."""
    name, data = body["metadata"]["name"], body.setdefault("data", {})
    for key, value in (body.pop("stringData", None) or {}).items():
        data[key] = base64.b64encode(value.encode()).decode()
    try:
        size = sum(len(base64.b64decode(value, validate=True)) for value in data.values())
    except binascii.Error as error:
        raise ApiError(400, "BadRequest", f"illegal base64 data in Secret {name}: {error}") from error
    if size > 2**20:
        raise invalid(resource, name, "data: Too long: may not be more than 1048576 bytes")
    body.setdefault("type", "Opaque")
