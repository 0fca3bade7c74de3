"""A run on a cluster: its rollouts are Jobs, and its policy servers and proxies run there already."""

import contextlib
import os
import re
import socket
import tempfile
from collections.abc import AsyncIterator
from collections.abc import Sequence
from pathlib import Path

from flows.config import RolloutConfig
from proxy_addons.errors import ConfigError
from tasks.doctor.versions import version_command
from tasks.engines import publish
from tasks.harnesses import Harness
from tasks.kube.settings import Settings
from tasks.proxies import TOKEN
from tasks.proxies import Proxies
from tasks.proxies import attached_proxies
from tasks.proxy import Proxy
from tasks.run import exclusive
from tasks.sandboxes import Outcome
from tasks.sandboxes import Sandbox
from tasks.sandboxes import Spec
from tasks.sandboxes.capture import last_lines
from tasks.taskset import Task
from training.policy_server import PolicyServer
from training.policy_server import attached_policy_server

Serving = tuple[list[PolicyServer], Proxy | Proxies]
"""What answers a run's model calls."""
VERSION_S = 120.0
"""How long a harness may take to say its version."""
_VERSION = re.compile(r"\d+\.\d+[\w.+-]*")


def settings(config: RolloutConfig, run: str, harnesses: Sequence[Harness], tasks: Sequence[Task]) -> Settings:
    """What the rollouts need to know of the cluster. Raises ConfigError for what a cluster cannot do."""
    cluster = config.kubernetes
    problems = [
        f"kubernetes.images: no image is named for the harness {each.NAME}; deploy/images/harnesses.Dockerfile has them"
        for each in harnesses
        if each.NAME not in cluster.images
    ]
    problems += [
        f"harnesses: {each.NAME} runs locally only: {each.NAME}'s interpreter is no part of it that an image could hold"
        for each in harnesses
        if not each.IMAGE_PATHS
    ]
    problems += [
        f"tasks: {task.id} allows hosts, and on a cluster nothing but the policy can be reached; leave it out"
        for task in tasks
        if task.allow_hosts or task.model_hosts
    ]
    served = [task.id for task in tasks if task.beside and task.beside.has_tools]
    if served:
        problems.append(
            f"tasks: {len(served)} of them, {served[0]} among them, have tools beside the sandbox, which only a local "
            "one has; use profile local"
        )
    if config.engine_replicas != 1:
        problems.append("engine_replicas: a cluster's policy servers are named in kubernetes.policies; leave it out")
    if TOKEN not in os.environ:
        problems.append(f"{TOKEN} is not set: it is the password of the proxies' control ports (docs/kubernetes.md)")
    if problems:
        raise ConfigError("\n".join(problems))
    host = cluster.collector_host or _own_address(cluster.proxies[0], cluster.proxy_port)
    return Settings(
        run=run,
        namespace=cluster.namespace,
        image=cluster.task_image,
        sidecar_image=cluster.sidecar_image,
        payloads={str(name): image for name, image in cluster.images.items()},
        collector_url=f"http://{f'[{host}]' if ':' in host else host}:{cluster.collector_port}",
        collector_listen=("", cluster.collector_port),
        service_account=cluster.service_account,
        runtime_class=cluster.runtime_class,
        priority_class=cluster.priority_class,
        retry_priority_class=cluster.retry_priority_class,
        ttl_s=cluster.ttl_s,
        max_pods=config.concurrency,
    )


def _own_address(host: str, port: int) -> str:
    """This machine's address on its way to `host`: the flow's pod IP in a cluster. Raises ConfigError."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # of a datagram socket: nothing is sent
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"kubernetes.proxies: {host} is not found from here ({error.strerror}): the flow runs in the cluster, as "
            "the deployment openforge/train of deploy/kubernetes"
        ) from None


@contextlib.asynccontextmanager
async def attached(config: RolloutConfig, run: str, model: Path) -> AsyncIterator[Serving]:
    """The cluster's policy servers and proxies, for the time of the block, serving `model` as version 0.

    Raises ConfigError if another run has them.
    """
    cluster = config.kubernetes
    async with contextlib.AsyncExitStack() as stack:
        # They hold one run's weights; the lock lies where every flow of this cluster comes by.
        busy = f"another run in {config.runs_dir} has the cluster's policy servers: wait for it or end it"
        stack.enter_context(exclusive(Path(config.runs_dir) / ".policy.lock", busy))
        policies = [
            await stack.enter_async_context(attached_policy_server(url.rstrip("/"), model)) for url in cluster.policies
        ]
        proxies = await stack.enter_async_context(
            attached_proxies(
                cluster.proxies, cluster.proxy_port, cluster.control_port, os.environ[TOKEN], run, model.absolute()
            )
        )
        # Whatever an earlier run left there, and held, is replaced.
        for url, reason in (await publish(proxies, policies, model, 0)).items():
            print(f"serve: leaving out {url}: {reason}")
        yield policies, proxies


async def versions(sandbox: Sandbox, config: RolloutConfig, run: str, harnesses: Sequence[Harness]) -> dict[str, str]:
    """What each harness says its version is, from its image in the task image; so a wrong image is told here.

    Raises ConfigError if one cannot say it.
    """
    return {harness.NAME: await _version(sandbox, config, run, harness) for harness in harnesses}


async def _version(sandbox: Sandbox, config: RolloutConfig, run: str, harness: Harness) -> str:
    with tempfile.TemporaryDirectory(prefix="openforge-version-") as temporary:
        folder = Path(temporary)
        for name in ("workspace", "home"):
            (folder / name).mkdir()
        spec = Spec(
            name=f"{run}-version-{harness.NAME.replace('_', '-')}",
            argv=tuple(version_command(harness.NAME)),
            env=harness.env("", "", ""),
            workspace=folder / "workspace",
            home=folder / "home",
            log_dir=folder / "log",
            binds_ro={path: Path(path) for path in harness.IMAGE_PATHS},
            memory_mb=config.limits.memory_mb,
            cpus=config.limits.cpus,
            wall_s=VERSION_S,
            payload=harness.NAME,
        )
        outcome = await sandbox.run(spec)
        said = _said(outcome)
    found = _VERSION.search(said)
    if outcome.reason != "exited" or outcome.exit_code != 0 or not found:
        image, task_image = config.kubernetes.images[harness.NAME], config.kubernetes.task_image  # type: ignore[index]
        raise ConfigError(
            f"kubernetes.images: {harness.NAME} of {image} does not run in {task_image}: {outcome.reason} "
            f"{outcome.detail or outcome.exit_code}: {said or 'it said nothing'}"
        )
    return found[0]


def _said(outcome: Outcome) -> str:
    return last_lines(outcome.stdout_path) or last_lines(outcome.stderr_path)
