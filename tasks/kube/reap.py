"""Removes what a run has in the cluster: by label, and never without a run's name.

    python -m tasks.kube.reap --run NAME [--namespace openforge]

For a controller that never came back; one that is alive removes its own.
"""

import argparse
import asyncio
import sys

from proxy_addons.errors import ConfigError
from proxy_addons.errors import OpenForgeError
from tasks.kube import manifest
from tasks.kube.api import Api
from tasks.kube.api import ApiError
from tasks.kube.api import batch
from tasks.kube.api import core
from tasks.kube.api import load_configuration
from tasks.kube.api import retrying

GONE_S = 60.0


async def reap(api: Api, namespace: str, run: str) -> list[str]:
    """Delete the run's Jobs, and with them their pods and Secrets; returns the Jobs' names when all are gone.

    Raises ConfigError for an empty name, InfrastructureError's cause `ApiError` if the cluster refuses.
    """
    if not run.strip():
        raise ConfigError("name a run; an empty name would remove every run's rollouts")
    query = [("labelSelector", manifest.selector(run))]
    jobs, _ = await api.listed(batch(namespace), query)
    async for attempt in retrying(GONE_S):
        with attempt:
            await api.ask("DELETE", batch(namespace), query, {"propagationPolicy": "Background"})
            # A Secret whose Job was gone before it was made has no owner that takes it along.
            await api.ask("DELETE", core(namespace, "secrets"), query)
    async for attempt in retrying(GONE_S):
        with attempt:
            left, _ = await api.listed(core(namespace, "pods"), query)
            if left:
                raise ApiError(0, "not gone yet", f"{len(left)} pods of run {run} are still ending", retry_after=0.5)
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
