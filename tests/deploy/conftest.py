import pytest

from tests.deploy.manifests import OVERLAYS
from tests.deploy.manifests import Object
from tests.deploy.manifests import flow_job
from tests.deploy.manifests import probe_jobs
from tests.deploy.manifests import rendered
from tests.deploy.manifests import rollout_job


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def items(overlay: str) -> list[Object]:
    """All that there is, the Jobs included that come later."""
    return [*rendered(overlay), flow_job(), rollout_job("claude_code"), rollout_job(None), *probe_jobs()]
