"""O45: a wrong image name fails at once, with the name; a registry's rate limit and a slow start are waited for."""

import asyncio
import time
from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from tasks.kube.outcome import Lost
from tasks.kube.outcome import Waiting
from tasks.kube.outcome import read
from tasks.kube.settings import Bounds
from tests.kube import scripts
from tests.kube.kubelet import Script
from tests.tasks.kube.support import IMAGE
from tests.tasks.kube.support import backend
from tests.tasks.kube.support import delivers
from tests.tasks.kube.support import settings
from tests.tasks.kube.support import spec

PATIENT = Bounds(create_s=900)


@pytest.mark.parametrize(
    ("script", "words"),
    [(scripts.invalid_image_name(), "invalid reference format"), (scripts.cannot_pull(), "manifest unknown")],
    ids=["invalid name", "manifest unknown"],
)
async def test_o45_a_wrong_name_fails_at_once(script: Script, words: str, tmp_path: Path) -> None:
    async with backend(script, settings(bounds=PATIENT)) as (_, sandbox):
        start = time.monotonic()
        with pytest.raises(ConfigError) as found:
            await sandbox.run(spec(tmp_path))
    assert time.monotonic() - start < 5
    assert IMAGE in str(found.value) and words in str(found.value)


def _slow(text: str) -> Script:
    """A pull that is refused a few times, and then a pod that does its work."""

    async def script(pod: object) -> None:
        await scripts.cannot_pull(text, times=3, backoff=0.1)(_Unended(pod))  # type: ignore[arg-type]
        await delivers()(_Placed(pod))  # type: ignore[arg-type]

    return script


class _Unended:
    """The pod, but what the script does when the image has come at last is left to another."""

    def __init__(self, pod: object) -> None:
        self._pod = pod

    def __getattr__(self, name: str) -> object:
        return (lambda *_, **__: None) if name in ("running", "exited") else getattr(self._pod, name)


class _Placed:
    """The pod, which has its node already."""

    def __init__(self, pod: object) -> None:
        self._pod = pod

    async def schedule(self) -> None:
        return None

    def __getattr__(self, name: str) -> object:
        return getattr(self._pod, name)


@pytest.mark.parametrize("text", [scripts.QPS_EXCEEDED, scripts.TOO_MANY_REQUESTS])
async def test_o45_a_rate_limit_is_waited_for(text: str, tmp_path: Path) -> None:
    async with backend(_slow(text), settings(bounds=PATIENT)) as (c, sandbox):
        outcome = await asyncio.wait_for(sandbox.run(spec(tmp_path)), 15)
        assert c.requests["create", "jobs"] == 1, "one try was enough"
    assert (outcome.reason, outcome.exit_code) == ("exited", 0)


def test_o45_three_minutes_of_container_creating_are_within_the_bound() -> None:
    status = {"name": "agent", "state": {"waiting": {"reason": "ContainerCreating"}}, "image": IMAGE}
    pod = {"metadata": {}, "spec": {}, "status": {"phase": "Pending", "containerStatuses": [status]}}
    state = read(None, pod, False, False)
    assert isinstance(state, Waiting)
    assert getattr(Bounds(), state.bound) > 180


def test_o45_the_first_word_of_the_registry_counts_and_not_the_back_off() -> None:
    def pod(reason: str, message: str) -> dict[str, object]:
        status = {"name": "agent", "state": {"waiting": {"reason": reason, "message": message}}, "image": IMAGE}
        return {"metadata": {}, "spec": {}, "status": {"phase": "Pending", "containerStatuses": [status]}}

    assert isinstance(read(None, pod("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'), False, False), Waiting)
    told = f'Back-off pulling image "{IMAGE}": ErrImagePull: {IMAGE}: not found'
    assert read(None, pod("ImagePullBackOff", told), False, False) == Lost(f"ImagePullBackOff: {told}", hopeless=True)
    # "429" stands before "not found" in what a mirror says of both.
    both = "429 Too Many Requests; mirror: not found"
    assert isinstance(read(None, pod("ErrImagePull", both), False, False), Waiting)
