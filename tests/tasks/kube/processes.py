"""Our whole pod as processes of this machine: the real sidecar and the real script, over the test cluster."""

import os
import sys
from collections.abc import AsyncIterator
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tasks.kube import sidecar
from tasks.sandboxes.kubernetes import Kubernetes
from tests.kube.cluster import Cluster
from tests.kube.objects import Object
from tests.kube.pods import Pod
from tests.kube.processes import Processes
from tests.kube.processes import _mapped
from tests.tasks.kube.support import backend
from tests.tasks.kube.support import settings


class Pods(Processes):
    """Without a file system of its own the agent's container cannot know its paths: they are exchanged in what was
    delivered, too."""

    async def _run(self, pod: Pod, container: Object, folder: Path, volumes: Mapping[str, Path]) -> int:
        if container["name"] == "agent":
            paths = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
            given = [volumes[name] for name in volumes if name == "home" or name.startswith("ro")]
            for file in [volumes["control"] / "run", *(file for each in given for file in each.rglob("*"))]:
                if file.is_file():
                    file.write_text(_mapped(file.read_text(), paths))
        # This machine's own /tmp holds the volumes, so that path stays as it is.
        mounts = [mount for mount in container["volumeMounts"] if mount["mountPath"] != "/tmp"]
        return await super()._run(pod, container | {"volumeMounts": mounts}, folder, volumes)


@asynccontextmanager
async def real_pods(
    folder: Path, images: Mapping[str, Mapping[str, Path]] | None = None, **fields: Any
) -> AsyncIterator[tuple[Cluster, Kubernetes]]:
    """A backend whose pods are processes, below `folder`."""
    configured = settings(sidecar_script=str(Path(sidecar.__file__)), **fields)
    # The sidecar image's python3 is this one.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with patch.dict(os.environ, PATH=path):
        async with backend(Pods(folder / "pods", images), configured) as both:
            yield both
