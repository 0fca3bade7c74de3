"""Label and field selectors, read as the API server reads them."""

import re
from collections.abc import Callable
from typing import Any

from tests.kube.resources import ApiError

Matches = Callable[[dict[str, Any]], bool]

FIELDS = {
    "metadata.name",
    "metadata.namespace",
    "status.phase",
    "spec.nodeName",
    "spec.restartPolicy",
    "status.successful",
    "type",
    "reason",
    "involvedObject.name",
    "involvedObject.namespace",
    "involvedObject.kind",
    "involvedObject.uid",
}
_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^)]*)\)")
_EQUAL = re.compile(r"([^\s=!]+)\s*(==|=|!=)\s*(\S*)")
_EXISTS = re.compile(r"(!?)\s*([^\s=!()]+)")


def labels(text: str) -> Matches:
    """`a=b,c!=d,e in (x, y),f notin (z),g,!h`; raises `ApiError` 400 for anything else."""
    tests = [_label(part.strip()) for part in re.split(r",(?![^(]*\))", text) if part.strip()]
    return lambda item: all(test(item["metadata"].get("labels") or {}) for test in tests)


def _label(part: str) -> Callable[[dict[str, str]], bool]:
    if match := _SET.fullmatch(part):
        key, operator, listed = match[1], match[2], {value.strip() for value in match[3].split(",")}
        return lambda have: (key in have and have[key] in listed) == (operator == "in")
    if match := _EQUAL.fullmatch(part):
        name, sign, value = match[1], match[2], match[3]
        return lambda have: (have.get(name) == value) == (sign != "!=")
    if match := _EXISTS.fullmatch(part):
        absent, wanted = match[1] == "!", match[2]
        return lambda have: (wanted in have) != absent
    raise ApiError(400, "BadRequest", f"unable to parse requirement: {part!r}")


def fields(text: str) -> Matches:
    """`status.phase!=Running,metadata.name=x`; raises `ApiError` 400 for a field that has no index."""
    tests = []
    for part in filter(None, text.split(",")):
        match = _EQUAL.fullmatch(part.strip())
        if match is None or match[1] not in FIELDS:
            raise ApiError(400, "BadRequest", f'field label not supported: "{match[1] if match else part}"')
        tests.append((match[1].split("."), match[3], match[2] != "!="))
    return lambda item: all((_value(item, path) == value) == equal for path, value, equal in tests)


def _value(item: Any, path: list[str]) -> str:
    for key in path:
        item = (item or {}).get(key)
    return "" if item is None else str(item)
