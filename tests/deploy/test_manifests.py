"""deploy/kubernetes as a cluster would get it: valid by the API's own schema, and then by the rules that it lacks."""

import json
import re
from collections import Counter
from typing import Any

import kubernetes_validate
from kubernetes.utils.quantity import parse_quantity

from tasks.doctor.cluster import NAMED
from tasks.kube.permissions import NEEDED
from tasks.run import ROOT
from tests.deploy.manifests import Object
from tests.deploy.manifests import base
from tests.deploy.manifests import containers
from tests.deploy.manifests import pod_specs

VERSION = "1.37"
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
IMAGE = re.compile(r"[a-z0-9]+([._/-][a-z0-9]+)*:[\w][\w.-]{0,127}")
HOST = re.compile(r"^(localhost|[^/]*[.:][^/]*)/")
YOURS = {"openforge-proxy": {"OPENFORGE_PROXY_TOKEN"}, "openforge-postgres": {"password"}}
"""The Secrets that docs/kubernetes.md has you make."""
ENUMS = {
    "preemptionPolicy": {"Never", "PreemptLowerPriority"},
    "podManagementPolicy": {"Parallel", "OrderedReady"},
    "reclaimPolicy": {"Retain", "Delete"},
    "volumeBindingMode": {"Immediate", "WaitForFirstConsumer"},
    "restartPolicy": {"Always", "OnFailure", "Never"},
    "fsGroupChangePolicy": {"OnRootMismatch", "Always"},
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "protocol": {"TCP", "UDP", "SCTP", "nfs"},
    "effect": {"NoSchedule", "PreferNoSchedule", "NoExecute"},
    "operator": {"In", "NotIn", "Exists", "DoesNotExist", "Equal"},
    "medium": {"", "Memory"},
    "kind": {"ConfigMap", "Deployment", "Job", "Namespace", "NetworkPolicy", "PersistentVolumeClaim", "PriorityClass"}
    | {"ResourceQuota", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount", "StatefulSet", "StorageClass"},
}
VERBS = {"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
ACCESS = {"ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"}


def named(items: list[Object], kind: str, namespace: str | None = None) -> set[str]:
    found = (item["metadata"] for item in items if item["kind"] == kind)
    return {meta.get("name", "") for meta in found if namespace in (None, meta.get("namespace"))}


def walk(part: Any, path: str = "") -> Any:
    """(path, key, value) of every field."""
    if isinstance(part, dict):
        for key, value in part.items():
            yield path, key, value
            yield from walk(value, f"{path}.{key}")
    elif isinstance(part, list):
        for number, value in enumerate(part):
            yield from walk(value, f"{path}[{number}]")


def test_valid_by_schema(items: list[Object]) -> None:
    for item in items:
        checked = item
        if item["metadata"].get("generateName"):
            # Prefect's worker demands two fields of a Job in the pod's spec too, where the API server drops them.
            checked = json.loads(json.dumps(item))
            assert checked["spec"]["template"]["spec"].pop("parallelism") == 1
            assert checked["spec"]["template"]["spec"].pop("completions") == 1
        kubernetes_validate.validate(checked, VERSION, strict=True)


def test_enums(items: list[Object]) -> None:
    for item in items:
        for path, key, value in walk({**item, "data": {}}):
            if key in ENUMS and isinstance(value, str):
                assert value in ENUMS[key], f"{item['metadata'].get('name')}{path}.{key}: {value}"
            if key == "verbs":
                assert set(value) <= VERBS
            if key == "accessModes":
                assert set(value) <= ACCESS
            if key == "policyTypes":
                assert set(value) <= {"Ingress", "Egress"}
            if key == "drop":
                assert value == ["ALL"]


def test_names_and_labels(items: list[Object]) -> None:
    for item in items:
        meta = item["metadata"]
        assert NAME.fullmatch(meta.get("name") or meta["generateName"].rstrip("-"))
        for path, key, value in walk(item):
            if key in ("labels", "matchLabels") and isinstance(value, dict):
                assert all(LABEL_VALUE.fullmatch(text) for text in value.values()), f"{meta}{path}"
    identities = Counter((i["kind"], i["metadata"].get("namespace"), i["metadata"].get("name")) for i in items)
    assert [identity for identity, times in identities.items() if times > 1 and identity[0] != "Job"] == []


def test_namespaces(items: list[Object]) -> None:
    known = named(items, "Namespace")
    assert known == {"openforge", "openforge-system"}
    for item in items:
        cluster_wide = item["kind"] in ("Namespace", "PriorityClass", "StorageClass")
        assert (item["metadata"].get("namespace") in known) is not cluster_wide, item["metadata"]


def test_quantities(items: list[Object]) -> None:
    for item in items:
        for _, key, value in walk(item):
            if key in ("limits", "requests", "hard") and isinstance(value, dict):
                amounts = {name: parse_quantity(amount) for name, amount in value.items()}
                assert all(amount > 0 for amount in amounts.values())
    for name, _, spec in pod_specs(items):
        for container in containers(spec):
            requests, limits = container["resources"]["requests"], container["resources"]["limits"]
            assert {"cpu", "memory"} <= set(requests) and set(requests) == set(limits), f"{name} {container['name']}"
            for key, amount in requests.items():
                assert parse_quantity(amount) <= parse_quantity(limits[key]), f"{name} {container['name']} {key}"


def test_selectors_find_their_pods(items: list[Object]) -> None:
    labelled = {name: labels for name, labels, _ in pod_specs(items)}
    for item in items:
        if item["kind"] in ("Deployment", "StatefulSet"):
            wanted = item["spec"]["selector"]["matchLabels"]
            assert wanted.items() <= item["spec"]["template"]["metadata"]["labels"].items()
        if item["kind"] == "Service":
            found = [name for name, labels in labelled.items() if item["spec"]["selector"].items() <= labels.items()]
            assert len(found) == 1, item["metadata"]["name"]
            (spec,) = [spec for name, _, spec in pod_specs(items) if name == found[0]]
            ports = {port["name"] for container in spec["containers"] for port in container["ports"]}
            assert {port["targetPort"] for port in item["spec"]["ports"]} <= ports
        if item["kind"] == "StatefulSet":
            assert item["spec"]["serviceName"] in named(items, "Service", item["metadata"]["namespace"])


def test_references_lead_somewhere(items: list[Object]) -> None:
    priorities = named(items, "PriorityClass")
    for item in items:
        if item["kind"] not in ("Deployment", "StatefulSet", "Job"):
            continue
        place = item["metadata"]["namespace"]
        spec = item["spec"]["template"]["spec"]
        claims = named(items, "PersistentVolumeClaim", place)
        if "serviceAccountName" in spec:
            assert spec["serviceAccountName"] in named(items, "ServiceAccount", place)
        if "priorityClassName" in spec:
            assert spec["priorityClassName"] in priorities
        for volume in spec.get("volumes", ()):
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
            if "configMap" in volume:
                assert volume["configMap"]["name"] in named(items, "ConfigMap", place)
        volumes = {volume["name"] for volume in spec.get("volumes", ())}
        volumes |= {claim["metadata"]["name"] for claim in item["spec"].get("volumeClaimTemplates", ())}
        for container in containers(spec):
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes
            for entry in container.get("env", ()):
                reference = entry.get("valueFrom", {}).get("secretKeyRef")
                if reference:
                    assert reference["key"] in YOURS[reference["name"]]
            for source in container.get("envFrom", ()):
                assert source["secretRef"]["name"] in YOURS
    for item in items:
        if item["kind"] == "RoleBinding":
            assert item["roleRef"]["name"] in named(items, "Role", item["metadata"]["namespace"])
            for subject in item["subjects"]:
                assert subject["name"] in named(items, "ServiceAccount", subject["namespace"])
        if item["kind"] == "PersistentVolumeClaim" and item["spec"].get("storageClassName", "").startswith("openforge"):
            assert item["spec"]["storageClassName"] in named(items, "StorageClass")


def test_pods_are_restricted(items: list[Object]) -> None:
    """The Pod Security Standard `restricted`, which both namespaces enforce, and a root that cannot be written."""
    for item in items:
        if item["kind"] == "Namespace":
            assert item["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
    for name, _, spec in pod_specs(items):
        outer = spec["securityContext"]
        assert (outer["runAsNonRoot"], outer["seccompProfile"]) == (True, {"type": "RuntimeDefault"}), name
        assert outer["runAsUser"] > 0
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all(set(volume) - {"name"} <= allowed for volume in spec.get("volumes", ()))
        assert spec["enableServiceLinks"] is False, name
        for container in containers(spec):
            inner = container["securityContext"]
            assert inner["allowPrivilegeEscalation"] is False and inner["readOnlyRootFilesystem"] is True
            assert inner["capabilities"] == {"drop": ["ALL"]}, f"{name} {container['name']}"


def test_only_who_asks_the_api_has_a_token(items: list[Object]) -> None:
    with_token = {name for name, _, spec in pod_specs(items) if spec["automountServiceAccountToken"]}
    assert with_token == {"Deployment/prefect-worker", "Job/"}
    assert all(item["automountServiceAccountToken"] is False for item in items if item["kind"] == "ServiceAccount")


def test_services_are_probed(items: list[Object]) -> None:
    for item in items:
        if item["kind"] in ("Deployment", "StatefulSet"):
            for container in item["spec"]["template"]["spec"]["containers"]:
                ports = {port["name"] for port in container["ports"]}
                for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                    (how,) = {"httpGet", "tcpSocket", "exec"} & container[probe].keys()
                    assert container[probe][how].get("port") in {*ports, None}, f"{item['metadata']['name']} {probe}"


def test_images_have_a_tag_and_no_host(items: list[Object], overlay: str) -> None:
    (data,) = [
        item["data"] for item in items if item["kind"] == "ConfigMap" and item["metadata"]["name"] == "openforge"
    ]
    found = {container["image"] for _, _, spec in pod_specs(items) for container in containers(spec)}
    found |= {value for key, value in data.items() if key.endswith("_image") or key.startswith("payload.")}
    for image in found:
        name = image.removeprefix("REGISTRY/") if overlay == "aks" else image
        assert IMAGE.fullmatch(name) and not HOST.match(name), image
        assert not name.endswith(":latest"), image


def test_no_secret_is_committed(items: list[Object]) -> None:
    assert named(items, "Secret") == set()
    for file in (ROOT / "deploy").rglob("*"):
        if file.suffix in (".yaml", ".json", ".Dockerfile") and "harnesses" not in file.parts:
            text = file.read_text()
            assert not re.search(r"(?i)(password|token|api_?key)\s*[:=]\s*[\"']?[A-Za-z0-9+/]{12,}", text), file


def test_settings_name_what_the_doctor_reads(items: list[Object]) -> None:
    (data,) = [
        item["data"] for item in items if item["kind"] == "ConfigMap" and item["metadata"]["name"] == "openforge"
    ]
    assert set(NAMED) <= data.keys()
    assert data["system_namespace"] in named(items, "Namespace")
    assert data["service_account"] in named(items, "ServiceAccount", "openforge")
    assert data["priority_class"] in named(items, "PriorityClass")
    assert data["runs_claim"] in named(items, "PersistentVolumeClaim", data["system_namespace"])


def test_retries_go_before_first_tries_and_services_before_both(items: list[Object]) -> None:
    value = {item["metadata"]["name"]: item["value"] for item in items if item["kind"] == "PriorityClass"}
    assert value["openforge-rollout"] < value["openforge-retry"] < value["openforge-service"] < 10**9
    assert not any(item.get("globalDefault") for item in items)


def test_the_flow_may_what_it_does_and_no_more() -> None:
    roles = {item["metadata"]["name"]: item for item in base() if item["kind"] == "Role"}
    allowed = {
        (group, resource): tuple(rule["verbs"])
        for rule in roles["openforge-flow"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert allowed == NEEDED
    assert roles["openforge-flow"]["metadata"]["namespace"] == "openforge"
    assert "*" not in str([role["rules"] for role in roles.values()])
