"""Kubernetes: one Job per command, the same contract as the local backends, no files shared with the cluster.

    async with choose("kubernetes", settings) as sandbox:
        outcome = await sandbox.run(Spec(...))

What a Job is made of is told in `tasks.kube`. A pod that ran and was taken away is an `Outcome` that was `lost`; one
that never ran is an `InfrastructureError`; what no try can mend, such as an image that does not exist, is a
`ConfigError` in the cluster's own words.
"""

import asyncio
import contextlib
import gc
import logging
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.aio.client import Configuration

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from proxy_addons.errors import VerifierError
from tasks.kube import manifest
from tasks.kube.api import Api
from tasks.kube.api import ApiError
from tasks.kube.api import core
from tasks.kube.api import load_configuration
from tasks.kube.collector import Collector
from tasks.kube.collector import Expected
from tasks.kube.collector import Inputs
from tasks.kube.collector import unpack
from tasks.kube.gate import Gate
from tasks.kube.launcher import delete
from tasks.kube.launcher import launch
from tasks.kube.outcome import Ended
from tasks.kube.outcome import Lost
from tasks.kube.outcome import Running
from tasks.kube.outcome import State
from tasks.kube.outcome import Waiting
from tasks.kube.outcome import read
from tasks.kube.reap import reap
from tasks.kube.script import run_script
from tasks.kube.settings import Settings
from tasks.kube.watch import SILENCE_S
from tasks.kube.watch import Seen
from tasks.kube.watch import Watch
from tasks.sandboxes import Outcome
from tasks.sandboxes import Spec
from tasks.sandboxes.capture import last_lines
from tasks.uncancelled import in_thread
from tasks.uncancelled import to_the_end

log = logging.getLogger(__name__)

_LAST_WORD_S = 10.0
"""How long a bad exit code waits for the kubelet to say whether memory was the reason."""
_SIGKILL = 137
_CODE = re.compile(r"[0-9]{1,3}")


def missing() -> str | None:
    """Whether there is a cluster is asked when the backend is entered."""
    return None


def build(settings: Any = None) -> "Kubernetes":
    """The backend. Raises ConfigError without settings."""
    if not isinstance(settings, Settings):
        raise ConfigError("sandbox 'kubernetes': it needs a cluster's settings; use profile kubernetes")
    return Kubernetes(settings)


@dataclass(frozen=True)
class _Open:
    api: Api
    watch: Watch
    collector: Collector
    gate: Gate


class Kubernetes:
    """The Jobs of one run. `configuration` None: from KUBECONFIG or the pod's own service account."""

    name = "kubernetes"

    def __init__(
        self, settings: Settings, configuration: Configuration | None = None, silence_s: float = SILENCE_S
    ) -> None:
        self._settings = settings
        self._configuration = configuration
        self._silence_s = silence_s
        self._stack = contextlib.AsyncExitStack()
        self._opened: _Open | None = None
        self._hopeless: dict[tuple[str | None, str | None], str] = {}

    async def __aenter__(self) -> "Kubernetes":
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(_few_collections())
            api = Api(self._configuration or await load_configuration())
            stack.push_async_callback(api.close)
            folder = Path(tempfile.mkdtemp(prefix="openforge-collector-"))
            stack.callback(shutil.rmtree, folder)
            collector = await stack.enter_async_context(Collector(settings.collector_listen, folder))
            watch = Watch(api, settings.namespace, manifest.selector(settings.run), self._silence_s)
            await stack.enter_async_context(watch)
            self._opened = _Open(api, watch, collector, Gate(settings.max_pods, settings.creates_per_s))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: Any) -> None:
        assert self._opened
        try:
            await to_the_end(self._reap_all(self._opened.api))
        finally:
            await self._stack.__aexit__(*error)

    async def _reap_all(self, api: Api) -> None:
        run, namespace = self._settings.run, self._settings.namespace
        try:
            await reap(api, namespace, run)
        except ApiError as error:
            # What the block came to counts more than that something was left.
            remedy = f"python -m tasks.kube.reap --run {run} --namespace {namespace}"
            log.warning("what run %s has in the cluster could not be removed (%s); later: %s", run, error, remedy)

    def not_enforced(self) -> list[str]:
        """What a Job cannot hold by itself."""
        return ["pids (the kubelet's podPidsLimit)", "no way out but the proxy (a NetworkPolicy, see deploy/)"]

    def reap(self, prefix: str) -> list[str]:
        """Kill what a dead controller left in the cluster, if it is this run's; returns the names."""
        if not prefix.startswith(self._settings.run):
            return []

        async def work() -> list[str]:
            api = Api(self._configuration or await load_configuration())
            try:
                return await reap(api, self._settings.namespace, self._settings.run)
            except ApiError as error:
                raise InfrastructureError(f"kubernetes: {error}") from error
            finally:
                await api.close()

        # `Sandbox.reap` is called from a running loop, too.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, work()).result()

    async def run(self, spec: Spec) -> Outcome:
        """Run the command in a pod of its own to its end; nothing of it is left in the cluster."""
        if spec.tools:
            raise ConfigError(f"sandbox {spec.name}: its task has tools beside the sandbox, which only a local one has")
        assert self._opened, "enter the backend before use"
        kind = (spec.image, spec.payload)
        if kind in self._hopeless:
            raise ConfigError(self._hopeless[kind])
        gate, first = self._opened.gate, spec.payload is None or bool(spec.rollout and spec.rollout.try_)
        async with gate.slot(manifest.group(spec), first):
            name, mark = manifest.object_name(spec.name), uuid.uuid4().hex
            with self._opened.watch.subscribe(name, mark) as seen:
                files = _inputs(spec)
                expected = self._opened.collector.expect(name, files, manifest.RESULT_BYTES, seen.changed)
                try:
                    outcome = await self._one(_Try(self._opened, self._settings, spec, seen, expected))
                finally:
                    self._opened.collector.forget(name)
            gate.went_well()
            return outcome

    async def _one(self, attempt: "_Try") -> Outcome:
        spec = attempt.spec
        try:
            state = await attempt.to_its_end()
        finally:
            # Also when cancelled, and when its POST may have worked though it was not answered.
            await to_the_end(self._remove(attempt))
        if isinstance(state, Lost):
            if state.hopeless:
                self._hopeless[spec.image, spec.payload] = f"sandbox {spec.name}: {state.detail}"
                raise ConfigError(f"sandbox {spec.name}: {state.detail}")
            if not attempt.ran:
                raise InfrastructureError(f"sandbox {spec.name}: it did not start: {state.detail}")
        return await in_thread(attempt.outcome, state)

    async def _remove(self, attempt: "_Try") -> None:
        assert self._opened
        name = manifest.object_name(attempt.spec.name)
        # What an unwilling API server keeps now is removed at the end of the run, and told then.
        with contextlib.suppress(ApiError):
            await delete(self._opened.api, self._settings.namespace, name)


@dataclass
class _Try:
    parts: _Open
    settings: Settings
    spec: Spec
    seen: Seen
    expected: Expected
    ran: bool = False
    started_at: float = 0.0

    async def to_its_end(self) -> State:
        """Launch, and follow Job and pod until all that will be known is known."""
        parts, expected = self.parts, self.expected
        await launch(parts.api, self.settings, self.spec, self.seen.mark, expected.key, parts.gate)
        self.started_at = time.monotonic()
        over = self.started_at + manifest.deadline_s(self.spec) + self.settings.bounds.api_s
        bound, since = "", self.started_at
        while True:
            self.seen.changed.clear()
            state = read(self.seen.job, self.seen.pod, self.seen.job_gone, self.seen.pod_gone)
            self.ran = self.ran or self.seen.ran or isinstance(state, Ended) or self.expected.record is not None
            waiting = self._waiting(state)
            if waiting is None:
                return state
            now = time.monotonic()
            if waiting.bound != bound:
                bound, since = waiting.bound, now
            until = min(over, since + self._bound(waiting))
            if now >= until:
                return await self._given_up(waiting, now - since)
            # Not `wait_for`: before Python 3.12 it loses a cancellation that comes together with the news.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until - now):
                    await self.seen.changed.wait()

    def _waiting(self, state: State) -> Waiting | None:
        """What is still to come; None if `state` and record say all there will be."""
        record = self.expected.record
        if record is not None:
            settled = record["reason"] or record.get("said") == "0" or isinstance(state, Ended | Lost)
            return None if settled else Waiting("last_word", "the pod's own status")
        match state:
            case Lost():
                return None
            case Ended():
                # While its sidecar runs the result may be on its way, and that of a large workspace takes its time.
                sends = not self.seen.pod_gone and self.seen.pod and self.seen.pod["status"]["phase"] == "Running"
                words = f"the pod ended ({state.detail}, {state.exit_code}) and sent no result"
                return Waiting("upload" if sends else "record_s", words)
            case Running():
                return Waiting("run", "it runs")
            case Waiting():
                return state

    def _bound(self, waiting: Waiting) -> float:
        if waiting.bound == "last_word":
            return _LAST_WORD_S
        if waiting.bound == "upload":
            return manifest.UPLOAD_S
        return float("inf") if waiting.bound == "run" else getattr(self.settings.bounds, waiting.bound)

    async def _given_up(self, waiting: Waiting, after_s: float) -> State:
        """The state of a try whose bound has passed, with what the cluster's events say of it."""
        if waiting.bound == "last_word":
            return Ended(_SIGKILL, False, "the kubelet did not say more")
        if waiting.bound == "run":
            return Lost("neither the pod nor the cluster said a word until long after its deadline")
        warning = await self._warnings()
        more = f"; {warning}" if warning and warning not in waiting.detail else ""
        if waiting.bound in ("schedule_s", "create_s"):
            self.parts.gate.push_back()
        return Lost(f"{waiting.detail} for {after_s:.0f} s{more}")

    async def _warnings(self) -> str:
        """The last warning about the pod, or about the Job if there is no pod; "" if it cannot be had."""
        about = self.seen.pod or self.seen.job
        if about is None:
            return ""
        query = [("fieldSelector", f"involvedObject.uid={about['metadata']['uid']},type=Warning")]
        try:
            events, _ = await self.parts.api.listed(core(self.settings.namespace, "events"), query)
        except ApiError:
            return ""
        events.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
        return f"{events[-1].get('reason')}: {events[-1].get('message')}" if events else ""

    def outcome(self, state: State) -> Outcome:
        """The outcome of a try that ran, its files put in place."""
        spec, record, result = self.spec, self.expected.record, self.expected.result
        if record is None or result is None:
            detail = state.detail if isinstance(state, Lost) else "it sent no result"
            return self._outcome(None, "lost", detail, time.monotonic() - self.started_at)
        if record.get("too_large"):
            raise VerifierError(f"the workspace has {record['bytes'] >> 20} MB, more than is taken; it was not scored")
        unpack(result, spec.log_dir, _results(spec))
        wall_s, said = record["wall_s"], record.get("said", "")
        match record["reason"]:
            case "timeout":
                return self._outcome(None, "timeout", f"killed after {spec.wall_s:g} s", wall_s)
            case "no_call":
                screen = last_lines(spec.log_dir / "stdout") or last_lines(spec.log_dir / "stderr") or "none"
                words = f"no model call within {spec.first_call_s:g} s; its last lines: {screen}"
                return self._outcome(None, "no_call", words, wall_s)
            case "stuck":
                return self._outcome(None, "lost", "it did not end when it was told to", wall_s)
        if said.startswith("start_failed"):
            return self._outcome(None, "start_failed", said.removeprefix("start_failed "), wall_s)
        if isinstance(state, Ended) and state.oom and said != "0":
            words = f"killed at the memory limit of {spec.memory_mb} MB"
            return self._outcome(state.exit_code, "oom", words, wall_s)
        if said in ("", str(_SIGKILL)):
            if isinstance(state, Lost):
                return self._outcome(None, "lost", state.detail, wall_s)
            detail = f" ({state.detail})" if isinstance(state, Ended) else ""
            return self._outcome(None, "killed", f"ended by signal 9{detail}", wall_s)
        if not _CODE.fullmatch(said):  # the agent can write to that pipe, too
            return self._outcome(None, "lost", f"its exit code cannot be read: {said[:40]!r}", wall_s)
        return self._outcome(int(said), "exited", "", wall_s)

    def _outcome(self, code: int | None, reason: Any, detail: str, wall_s: float) -> Outcome:
        folder = self.spec.log_dir
        return Outcome(code, reason, detail, wall_s, None, folder / "stdout", folder / "stderr")


@contextlib.contextmanager
def _few_collections() -> Iterator[None]:
    """Python's collector of cycles, told that most of what comes is in none.

    Every event of the cluster is some hundred new objects, none in a cycle: looked at as often as usual they cost a
    twentieth of all CPU. What is loaded by now stays, and is not looked at again.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(20_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _inputs(spec: Spec) -> Inputs:
    given = {"workspace": spec.workspace, "home": spec.home, **dict(manifest.bound(spec).values())}
    return {"control": {"run": run_script(spec)}, **given}


def _results(spec: Spec) -> dict[str, Path]:
    back = {volume: folder for volume, folder in manifest.bound(spec).values() if volume.startswith("rw")}
    return {"workspace": spec.workspace, **back}
