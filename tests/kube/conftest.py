from collections.abc import AsyncIterator

import pytest

from tests.kube.cluster import Cluster
from tests.kube.cluster import cluster
from tests.kube.support import Clients
from tests.kube.support import clients


@pytest.fixture
async def c() -> AsyncIterator[Cluster]:
    async with cluster() as it:
        yield it


@pytest.fixture
async def k(c: Cluster) -> AsyncIterator[Clients]:
    async with clients(c) as it:
        yield it
