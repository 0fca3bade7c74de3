"""What `permissions.NEEDED` names is what the backend asks for, no more and no less: recorded, not read."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from proxy_addons.errors import InfrastructureError
from tasks.kube.api import Api
from tasks.kube.permissions import NEEDED
from tasks.kube.settings import Bounds
from tests.kube import scripts
from tests.tasks.kube.support import QUICK
from tests.tasks.kube.support import backend
from tests.tasks.kube.support import delivers
from tests.tasks.kube.support import settings
from tests.tasks.kube.support import spec

Asked = dict[tuple[str, str], set[str]]


def _right(method: str, path: str, query: list[tuple[str, str]]) -> tuple[tuple[str, str], str]:
    """((API group, resource), verb) of a request, as role-based access control sees it."""
    parts = path.strip("/").split("/")
    group = parts[1] if parts[0] == "apis" else ""
    _, _, resource, *name = parts[parts.index("namespaces") :]
    if method == "GET" and not name:
        return (group, resource), "watch" if ("watch", "true") in query else "list"
    verb = {"GET": "get", "POST": "create", "DELETE": "delete" if name else "deletecollection"}[method]
    return (group, resource), verb


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found: Asked = defaultdict(set)
    send = Api._send

    async def recorded(self: Api, method: str, path: str, query: Any, *rest: Any) -> Any:
        right, verb = _right(method, path, query or [])
        found[right].add(verb)
        return await send(self, method, path, query, *rest)

    monkeypatch.setattr(Api, "_send", recorded)
    return found


async def test_every_right_is_used_and_none_is_missing(asked: Asked, tmp_path: Path) -> None:
    async with backend(delivers()) as (c, sandbox):
        c.faults.lose_answer("POST", "/jobs")
        c.faults.lose_answer("POST", "/secrets")
        await sandbox.run(spec(tmp_path))
    quick = settings(bounds=Bounds(**{**vars(QUICK), "schedule_s": 0.3}))
    async with backend(scripts.unschedulable(), quick) as (_, sandbox):
        with pytest.raises(InfrastructureError, match="nodes are available"):
            await sandbox.run(spec(tmp_path))
    assert {right: sorted(verbs) for right, verbs in asked.items()} == {
        right: sorted(verbs) for right, verbs in NEEDED.items()
    }
