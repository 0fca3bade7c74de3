"""The cluster as a whole: how it is reached, and that many Jobs at once all come to their end."""

import random
from collections import Counter
from pathlib import Path

from kubernetes import config
from kubernetes.aio import client

from tests.kube import scripts
from tests.kube.cluster import Cluster
from tests.kube.jobs import TRACKING
from tests.kube.objects import Object
from tests.kube.pods import Pod
from tests.kube.support import NAMESPACE
from tests.kube.support import Clients
from tests.kube.support import eventually
from tests.kube.support import make_job


def test_a_kubeconfig_leads_to_it(tmp_path: Path) -> None:
    it = Cluster(scripts.exits(), capacity=1, nodes=1)
    it.url = "http://127.0.0.1:1"
    configuration = client.Configuration()
    config.load_kube_config(str(it.kubeconfig(tmp_path)), client_configuration=configuration)
    assert configuration.host == it.url


def ended(job: Object) -> str | None:
    rows = [row["type"] for row in job["status"].get("conditions", ()) if row["type"] in ("Complete", "Failed")]
    assert len(rows) <= 1
    return rows[0] if rows else None


async def test_many_jobs_each_end_once(c: Cluster, k: Clients) -> None:
    """Every pod is counted once, whatever became of it, and nothing is left when the Jobs are deleted."""
    fates = {
        "Complete": [scripts.exits(0), scripts.cannot_pull(scripts.QPS_EXCEEDED, times=1)],
        "Failed": [scripts.exits(3), scripts.oom_killed(), scripts.evicted(), scripts.preempted(), scripts.deleted()],
    }
    numbers = random.Random(0)
    plan = {f"job-{number}": numbers.choice(["Complete", "Failed"]) for number in range(60)}

    async def script(pod: Pod) -> None:
        await numbers.choice(fates[plan[pod.labels["job-name"]]])(pod)

    c.script = script
    for name in plan:
        await k.batch.create_namespaced_job(NAMESPACE, make_job(name, {"run": "many"}))
    await eventually(lambda: all(ended(job) for job in c.objects.all("jobs")), 15)
    assert {job["metadata"]["name"]: ended(job) for job in c.objects.all("jobs")} == plan
    counts = Counter(
        (job["status"].get("succeeded", 0), job["status"].get("failed", 0)) for job in c.objects.all("jobs")
    )
    kinds = Counter(plan.values())
    assert counts == {(1, 0): kinds["Complete"], (0, 1): kinds["Failed"]}
    assert not any(TRACKING in pod["metadata"].get("finalizers", ()) for pod in c.objects.all("pods"))
    assert len(c.kubelet.seen) == len(plan)
    await k.batch.delete_collection_namespaced_job(
        NAMESPACE, label_selector="run=many", propagation_policy="Foreground"
    )
    await eventually(lambda: not c.objects.all("jobs") and not c.objects.all("pods"))
