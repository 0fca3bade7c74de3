"""Our whole pod for real, as processes of this machine or as containers: the real sidecar and the real script, over the
test cluster."""

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
from tests.kube.kinds import real
from tests.tasks.kube.support import backend
from tests.tasks.kube.support import settings


@asynccontextmanager
async def real_pods(
    folder: Path, images: Mapping[str, Mapping[str, Path]] | None = None, kind: str = "mounted", **fields: Any
) -> AsyncIterator[tuple[Cluster, Kubernetes]]:
    """A backend whose pods are processes, or of another of `tests.kube.kinds`, below `folder`."""
    configured = settings(**fields)
    program = {configured.sidecar_script: Path(sidecar.__file__)}
    known = {configured.image: {}, configured.sidecar_image: program, **(images or {})}
    # The sidecar image's python3 is this one.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with patch.dict(os.environ, PATH=path):
        async with real(kind, folder / "pods", known) as script, backend(script, configured) as both:
            yield both
