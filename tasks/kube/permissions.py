"""What the rollouts' backend asks of the Kubernetes API, and so what its service account must be allowed.

The Role in deploy/kubernetes/base/accounts.yaml allows exactly this; the doctor asks the cluster for each.
"""

NEEDED: dict[tuple[str, str], tuple[str, ...]] = {
    ("batch", "jobs"): ("create", "delete", "deletecollection", "get", "list", "watch"),
    ("", "secrets"): ("create", "deletecollection", "get"),
    ("", "pods"): ("list", "watch"),
    ("", "events"): ("list",),
}
"""(API group, resource) → verbs, in the namespace of the rollouts."""
