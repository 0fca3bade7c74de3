"""The NetworkPolicies, read as a network plug-in reads them: who may speak to whom, and that nobody else may."""

from tasks.doctor import pods as doctor_pods
from tests.deploy.manifests import Object
from tests.deploy.manifests import rollout_job


def _selects(selector: Object, labels: dict[str, str]) -> bool:
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    return all(labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", ()))


def _permits(items: list[Object], way: str, one: Object, other: Object, port: int) -> bool:
    """Whether the policies on pod `one` let traffic of `way` pass to or from `other`."""
    mine = [
        item["spec"]
        for item in items
        if item["kind"] == "NetworkPolicy"
        and item["metadata"]["namespace"] == one["namespace"]
        and _selects(item["spec"]["podSelector"], one["labels"])
        and way in item["spec"]["policyTypes"]
    ]
    assert mine, f"{one}: no policy, so everything would pass"
    peers_key = {"Ingress": "from", "Egress": "to"}[way]
    for rule in (rule for spec in mine for rule in spec.get(way.lower(), ())):
        if "ports" in rule and port not in [each["port"] for each in rule["ports"]]:
            continue
        for peer in rule.get(peers_key, [None]):
            if peer is None or (other["namespace"] and _is_peer(peer, one["namespace"], other)):
                return True
    return False


def _is_peer(peer: Object, here: str, other: Object) -> bool:
    if "namespaceSelector" in peer:
        if not _selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": other["namespace"]}):
            return False
    elif other["namespace"] != here:
        return False
    return _selects(peer.get("podSelector", {}), other["labels"])


def _pass(items: list[Object], source: Object, target: Object, port: int) -> bool:
    out = _permits(items, "Egress", source, target, port)
    return out and _permits(items, "Ingress", target, source, port)


def _pod(part: str) -> Object:
    return {"namespace": "openforge-system", "labels": {"openforge/part": part}}


def _rollout(payload: str | None) -> Object:
    return {"namespace": "openforge", "labels": rollout_job(payload)["spec"]["template"]["metadata"]["labels"]}


PARTS = ("proxy", "policy", "flow", "prefect-server", "prefect-worker", "postgres")
WAYS = {
    ("rollout", "proxy", 9100),
    ("rollout", "flow", 9200),
    ("verifier", "flow", 9200),
    ("flow", "proxy", 9100),
    ("flow", "proxy", 9101),
    ("proxy", "policy", 8200),
    ("flow", "policy", 8200),
    ("prefect-worker", "prefect-server", 4200),
    ("flow", "prefect-server", 4200),
    ("prefect-server", "postgres", 5432),
}


def test_the_network_lets_pass_this_and_nothing_else(items: list[Object]) -> None:
    who = {part: _pod(part) for part in PARTS} | {"rollout": _rollout("claude_code"), "verifier": _rollout(None)}
    ports = {port for _, _, port in WAYS} | {22}
    open_ways = {
        (source, target, port)
        for source in who
        for target in who
        for port in ports
        if source != target and _pass(items, who[source], who[target], port)
    }
    assert open_ways == WAYS


def test_rollouts_reach_no_name_server_and_nobody_outside(items: list[Object]) -> None:
    names = {"namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}}
    outside = {"namespace": "", "labels": {}}
    probe = {"namespace": "openforge", "labels": doctor_pods.LABELS}
    for pod in (_rollout("claude_code"), _rollout(None), probe):
        for target, port in ((names, 53), (outside, 443), (outside, 53), (outside, 80)):
            assert not _permits(items, "Egress", pod, target, port)
    assert not _permits(items, "Egress", _rollout(None), _pod("proxy"), 9100)
    for part in ("proxy", "policy", "postgres", "prefect-server"):
        assert not _permits(items, "Egress", _pod(part), outside, 443), part
    assert _permits(items, "Egress", _pod("flow"), outside, 443)
    assert _permits(items, "Egress", _pod("proxy"), names, 53)
