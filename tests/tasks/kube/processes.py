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
from tests.kube.mounted import Mounted
from tests.tasks.kube.support import backend
from tests.tasks.kube.support import settings


@asynccontextmanager
async def real_pods(
    folder: Path, images: Mapping[str, Mapping[str, Path]] | None = None, **fields: Any
) -> AsyncIterator[tuple[Cluster, Kubernetes]]:
    """A backend whose pods are processes, below `folder`."""
    configured = settings(sidecar_script=str(Path(sidecar.__file__)), **fields)
    # The sidecar image's python3 is this one.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with patch.dict(os.environ, PATH=path):
        async with backend(Mounted(folder / "pods", images), configured) as both:
            yield both
