"""The three ways to run a pod's commands for real, by name, so that a test can be run in each."""

import shutil
from collections.abc import AsyncIterator
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.kube import containerd
from tests.kube.containers import containers
from tests.kube.mounted import Mounted
from tests.kube.processes import Processes

KINDS = ("processes", "mounted", "containers")


@asynccontextmanager
async def real(kind: str, folder: Path, images: Mapping[str, Mapping[str, Path]]) -> AsyncIterator[Processes]:
    """The kubelet's script of that kind, or skip the test where this machine cannot have it."""
    if kind == "containers":
        if why := containerd.missing():
            pytest.skip(why)
        async with containers(folder, images) as script:
            yield script
    else:
        if kind == "mounted" and not shutil.which("bwrap"):
            pytest.skip("bubblewrap is not installed")
        yield Mounted(folder, images) if kind == "mounted" else Processes(folder, images)
