"""The four kinds of PATCH."""

from typing import Any

import jsonpatch

from tests.kube.objects import Object
from tests.kube.objects import copy
from tests.kube.resources import ApiError

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json-patch+json"
# The merge keys that Kubernetes' types declare; a list under any other name is replaced as a whole.
KEYS = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ownerReferences": "uid",
}


def apply(kind: str, item: Object, patch: Any) -> Object:
    """`item` after a patch of content type `kind`; raises `ApiError` 415 for another kind, 422 if it does not fit."""
    if kind == JSON:
        try:
            changed: Object = jsonpatch.apply_patch(item, patch)
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
            raise ApiError(422, "Invalid", f"the patch does not fit: {error}") from error
        return changed
    if kind not in (APPLY, MERGE, STRATEGIC):
        raise ApiError(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {kind}")
    merged: Object = _merge(copy(item), patch, by_key=kind != MERGE)
    return merged


def _merge(old: Any, new: Any, by_key: bool, name: str = "") -> Any:
    if isinstance(new, dict):
        merged = dict(old) if isinstance(old, dict) else {}
        for key, value in new.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = _merge(merged.get(key), value, by_key, key)
        return merged
    if isinstance(new, list) and by_key and isinstance(old, list):
        if name == "finalizers":
            return [*old, *(value for value in new if value not in old)]
        if name in KEYS:
            rows = {row[KEYS[name]]: row for row in old}
            for row in new:
                if row.get("$patch") == "delete":
                    rows.pop(row[KEYS[name]], None)
                else:
                    rows[row[KEYS[name]]] = _merge(rows.get(row[KEYS[name]]), row, by_key)
            return list(rows.values())
    return new
