"""Removes what a run has in the cluster: by label, and never without a run's name.

    python -m tasks.kube.reap --run NAME [--namespace openforge]

For a controller that never came back; one that is alive removes its own.
"""

import argparse
import asyncio
import logging
import sys
import time
from functools import partial

from proxy_addons.errors import ConfigError
from proxy_addons.errors import OpenForgeError
from tasks.kube import manifest
from tasks.kube.api import Api
from tasks.kube.api import ApiError
from tasks.kube.api import batch
from tasks.kube.api import core
from tasks.kube.api import load_configuration
from tasks.kube.api import persist

GONE_S = 30.0

log = logging.getLogger(__name__)


async def reap(api: Api, namespace: str, run: str) -> list[str]:
    """Delete the run's Jobs, and with them their pods and Secrets; returns the Jobs' names when all are gone.

    Pods that are still ending after a while, such as those of a node that is gone, are told and left to the cluster.
    Raises ConfigError for an empty name, ApiError if the cluster refuses.
    """
    if not run.strip():
        raise ConfigError("name a run; an empty name would remove every run's rollouts")
    query = [("labelSelector", manifest.selector(run))]
    jobs, _ = await api.listed(batch(namespace), query)
    options = {"propagationPolicy": "Background"}
    # A Secret whose Job was gone before it was made has no owner that takes it along.
    for path in (batch(namespace), core(namespace, "secrets")):
        await persist(partial(api.ask, "DELETE", path, query, options), GONE_S)
    deadline = time.monotonic() + GONE_S
    while left := (await api.listed(core(namespace, "pods"), query))[0]:
        if time.monotonic() > deadline:
            log.warning("%d pods of run %s are still ending; is their node gone?", len(left), run)
            break
        await asyncio.sleep(0.5)
    return sorted(job["metadata"].get("annotations", {}).get(manifest.NAME, job["metadata"]["name"]) for job in jobs)


async def _main(run: str, namespace: str) -> int:
    api = Api(await load_configuration())
    try:
        names = await reap(api, namespace, run)
    finally:
        await api.close()
    print(f"removed {len(names)} Jobs of run {run}" if names else f"nothing of run {run} is left in {namespace}")
    return 0


def main(arguments: list[str]) -> int:
    """The command; every expected failure is one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m tasks.kube.reap", description="remove a run's Jobs and pods")
    parser.add_argument("--run", required=True, help="the run's name")
    parser.add_argument("--namespace", default="openforge", help="its namespace")
    given = parser.parse_args(arguments)
    try:
        return asyncio.run(_main(given.run, given.namespace))
    except (OpenForgeError, ApiError) as error:
        print(f"reap: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
