"""ResourceQuota: how much is used, and 403 for what would be too much."""

from decimal import Decimal

from kubernetes.utils.quantity import parse_quantity

from tests.kube.objects import Object
from tests.kube.objects import Objects
from tests.kube.resources import Resource
from tests.kube.resources import forbidden


def admit(objects: Objects, resource: Resource, body: Object, namespace: str) -> None:
    """Raises `ApiError` 403 with the words of the real admission plug-in."""
    for item in objects.all("resourcequotas", namespace):
        hard = item["spec"].get("hard", {})
        asked = {key: amount for key, amount in _costs(resource.qualified, body).items() if key in hard}
        used = _used(objects, item) if asked else {}
        over = [key for key in sorted(asked) if used[key] + asked[key] > parse_quantity(hard[key])]
        if over:
            words = (
                f"exceeded quota: {item['metadata']['name']}, "
                f"requested: {_words(over, asked)}, used: {_words(over, used)}, "
                + "limited: "
                + ",".join(f"{key}={hard[key]}" for key in over)
            )
            raise forbidden(resource, body["metadata"].get("name") or body["metadata"].get("generateName", ""), words)


def with_usage(objects: Objects, item: Object) -> Object:
    """The quota with its status filled in."""
    hard = item["spec"].get("hard", {})
    return item | {"status": {"hard": hard, "used": {k: _plain(v) for k, v in _used(objects, item).items()}}}


def _used(objects: Objects, item: Object) -> dict[str, Decimal]:
    used = dict.fromkeys(item["spec"].get("hard", {}), Decimal(0))
    for plural, qualified in (("pods", "pods"), ("jobs", "jobs.batch"), ("secrets", "secrets")):
        for other in objects.all(plural, item["metadata"]["namespace"]):
            if other.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                for key, amount in _costs(qualified, other).items():
                    if key in used:
                        used[key] += amount
    return used


def _costs(qualified: str, item: Object) -> dict[str, Decimal]:
    costs = {f"count/{qualified}": Decimal(1)}
    if qualified in ("pods", "secrets"):
        costs[qualified] = Decimal(1)
    if qualified == "pods":
        for container in item["spec"]["containers"]:
            for side in ("requests", "limits"):
                for name, amount in container.get("resources", {}).get(side, {}).items():
                    for key in (f"{side}.{name}", *((name,) if side == "requests" else ())):
                        costs[key] = costs.get(key, Decimal(0)) + parse_quantity(amount)
    return costs


def _words(keys: list[str], amounts: dict[str, Decimal]) -> str:
    return ",".join(f"{key}={_plain(amounts[key])}" for key in keys)


def _plain(amount: Decimal) -> str:
    return f"{amount.normalize():f}"
