"""The command line of the doctor. Exit status: 0 if nothing failed, 1 if something did."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator

from proxy_addons.errors import ConfigError
from tasks.doctor import Check
from tasks.doctor.cluster import check_cluster
from tasks.doctor.local import check_local
from tasks.kube.api import load_configuration
from tasks.run import ROOT


async def _checks(profile: str, namespace: str) -> AsyncIterator[Check]:
    if profile == "local":
        for check in check_local(ROOT):
            yield check
        return
    try:
        configuration = await load_configuration()
    except ConfigError as error:
        yield Check("API server", False, str(error))
        return
    async for check in check_cluster(namespace, configuration):
        yield check


async def _main(profile: str, namespace: str) -> int:
    failed = 0
    async for check in _checks(profile, namespace):
        print(check.line(), flush=True)
        failed += check.ok is False
    print(f"doctor: {failed} check{'s' if failed > 1 else ''} failed" if failed else "doctor: nothing failed")
    return 1 if failed else 0


def main(arguments: list[str]) -> int:
    """Run the checks of one profile."""
    parser = argparse.ArgumentParser(prog="python -m tasks.doctor", description="check what a run needs")
    parser.add_argument("--profile", choices=("local", "kubernetes"), default="local")
    parser.add_argument("--namespace", default="openforge", help="namespace of the rollouts (kubernetes)")
    given = parser.parse_args(arguments)
    try:
        return asyncio.run(_main(given.profile, given.namespace))
    except KeyboardInterrupt:
        print("doctor: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
