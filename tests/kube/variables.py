"""Where a container's environment comes from: values, Secrets, ConfigMaps, fields of its pod."""

import base64
import re
from collections.abc import Mapping

from tests.kube.objects import Object
from tests.kube.pods import Pod


class Missing(Exception):
    """A Secret or ConfigMap, or a key of one, is not there (yet)."""


def variables_of(pod: Pod, container: Object) -> dict[str, str]:
    """Raises `Missing`."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        for kind in ("secret", "configMap"):
            if (ref := source.get(f"{kind}Ref")) is not None:
                for key, value in _present(pod, kind, ref).items():
                    found[source.get("prefix", "") + key] = value.decode()
    for entry in container.get("env", ()):
        source = entry.get("valueFrom") or {}
        if "fieldRef" in source:
            found[entry["name"]] = _field(pod, source["fieldRef"]["fieldPath"])
        elif not source:
            found[entry["name"]] = expand(entry.get("value", ""), found)
        for kind in ("secret", "configMap"):
            if (ref := source.get(f"{kind}KeyRef")) is not None:
                data = _present(pod, kind, ref)
                if ref["key"] in data:
                    found[entry["name"]] = data[ref["key"]].decode()
                elif not ref.get("optional"):
                    raise Missing(f"couldn't find key {ref['key']} in {kind} {pod.namespace}/{ref['name']}")
    return found


def _present(pod: Pod, kind: str, ref: Object) -> dict[str, bytes]:
    data = data_of(pod, kind, ref["name"])
    if data is None and not ref.get("optional"):
        raise Missing(f'{kind.lower()} "{ref["name"]}" not found')
    return data or {}


def data_of(pod: Pod, kind: str, name: str) -> dict[str, bytes] | None:
    item = pod.objects.find("secrets" if kind == "secret" else "configmaps", pod.namespace, name)
    if item is None:
        return None
    if kind == "secret":
        return {key: base64.b64decode(value) for key, value in item["data"].items()}
    return {key: value.encode() for key, value in item.get("data", {}).items()}


def _field(pod: Pod, path: str) -> str:
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str(pod.item["metadata"].get(match[1], {}).get(match[2], ""))
    value = pod.item
    for key in path.split("."):
        value = value.get(key, {})
    return value if isinstance(value, str) else ""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` as Kubernetes expands it: an unknown name stays, `$$` is one dollar."""
    return re.sub(r"\$\$|\$\(([^)]+)\)", lambda m: "$" if m[1] is None else variables.get(m[1], m[0]), text)
