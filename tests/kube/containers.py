"""The container kubelet: a pod's containers as real ones, made by containerd through the interface that a kubelet uses
(CRI): file systems, users, process trees and control groups of their own, and the kernel's own OOM kills.

    async with containers(tmp_path, {"registry.test/task:1": {}}) as script, cluster(script) as c: ...

What a node would give and this does not: a network of the pod's own, for there are no network plug-ins here; images
with content of their own (containerd.py). An image of another name than those given is asked of its registry.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import asynccontextmanager
from math import ceil
from pathlib import Path
from typing import Any
from typing import BinaryIO

import grpc
from cri_api.v1 import api_pb2 as cri
from kubernetes.utils.quantity import parse_quantity

from tasks.sandboxes import cgroups
from tests.kube import memory
from tests.kube.containerd import Containerd
from tests.kube.containerd import host_files
from tests.kube.containerd import running_containerd
from tests.kube.containerd import stubborn
from tests.kube.objects import Object
from tests.kube.pods import Pod
from tests.kube.processes import MARK
from tests.kube.processes import RETRY_S
from tests.kube.processes import Processes
from tests.kube.variables import expand

POLL_S = 0.05
_PERIOD_US = 100_000


@asynccontextmanager
async def containers(folder: Path, images: Mapping[str, Mapping[str, Path]]) -> AsyncIterator["Containers"]:
    """`images` as for `Processes`: those that there are."""
    async with running_containerd(images) as daemon:
        yield Containers(folder, images, daemon)


class Containers(Processes):
    def __init__(self, folder: Path, images: Mapping[str, Mapping[str, Path]], daemon: Containerd) -> None:
        super().__init__(folder, images)
        self._daemon = daemon
        self._sandboxes: dict[str, str] = {}

    async def _live(self, pod: Pod) -> None:
        config = _sandbox(pod, self._folder)
        Path(config.log_directory).mkdir(parents=True)
        answer = await self._daemon.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=config))
        self._sandboxes[pod.uid] = answer.pod_sandbox_id
        try:
            await super()._live(pod)
        finally:
            await self._daemon.remove_pod(answer.pod_sandbox_id)

    async def _fill(self, pod: Pod, volume: Object, folder: Path) -> None:
        """As a kubelet leaves them: root's, and with `fsGroup` that group's too, with what is made in there later."""
        await super()._fill(pod, volume, folder)
        folder.chmod(0o777)
        group = pod.spec.get("securityContext", {}).get("fsGroup")
        for path in (folder, *folder.rglob("*")) if group is not None else ():
            os.chown(path, -1, group)
            path.chmod(path.stat().st_mode | (0o2770 if path.is_dir() else 0o440))

    async def _run(self, pod: Pod, container: Object, folder: Path, volumes: Mapping[str, Path]) -> int:
        name, runtime, place = container["name"], self._daemon.runtime, _sandbox(pod, self._folder)
        await self._pull(pod, container)
        env = await self._environment(pod, container)
        config = self._config(pod, container, folder, volumes, env)
        request = cri.CreateContainerRequest(
            pod_sandbox_id=self._sandboxes[pod.uid], config=config, sandbox_config=place
        )
        try:
            made: str = (await runtime.CreateContainer(request)).container_id
        except grpc.aio.AioRpcError as error:
            pod.waiting("CreateContainerError", error.details() or "", name)
            await asyncio.Event().wait()
        log = Path(place.log_directory, config.log_path)
        log.touch()
        with log.open("rb") as lines:
            try:
                await runtime.StartContainer(cri.StartContainerRequest(container_id=made))
                pod.running(name)
            except grpc.aio.AioRpcError:
                pass  # its status has the reason
            try:
                status = await self._end_of(pod, container, made, lines)
            except asyncio.CancelledError:
                await self._stop(pod, made)
                if pod.deleting:
                    _tell(pod, container, await self._end_of(pod, container, made, lines), folder)
                raise
        _tell(pod, container, status, folder)
        return int(status.exit_code)

    async def _pull(self, pod: Pod, container: Object) -> None:
        """Have the image, or ask for it again and again, in the runtime's words."""
        name, image = container["name"], container["image"]
        spec, images = cri.ImageSpec(image=image), self._daemon.images
        while not (await images.ImageStatus(cri.ImageStatusRequest(image=spec))).image.id:
            try:
                await images.PullImage(cri.PullImageRequest(image=spec))
            except grpc.aio.AioRpcError as error:
                code = error.code().name.title().replace("_", "")
                words = f"rpc error: code = {code} desc = {error.details()}"
                pod.waiting("ErrImagePull", words, name)
                pod.event("Failed", f'Failed to pull image "{image}": {words}')
                await asyncio.sleep(RETRY_S)
                pod.waiting("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {words}', name)
                await asyncio.sleep(RETRY_S)

    def _config(
        self, pod: Pod, container: Object, folder: Path, volumes: Mapping[str, Path], env: dict[str, str]
    ) -> Any:
        last_words = _last_words(folder, container)
        last_words.parent.mkdir(exist_ok=True)
        last_words.touch()
        last_words.chmod(0o666)
        mounts = [_mount(str(path), path, True) for path in host_files()]
        mounts += [_mount(path, source, True) for path, source in self._images.get(container["image"], {}).items()]
        mounts.append(_mount(container.get("terminationMessagePath", "/dev/termination-log"), last_words, False))
        for mount in container.get("volumeMounts", ()):
            source = volumes[mount["name"]] / mount.get("subPath", "")
            if not source.exists():
                source.mkdir(parents=True)
            mounts.append(_mount(mount["mountPath"], source, mount.get("readOnly", False)))
        mark = {MARK: f"{pod.uid}/{container['name']}"}
        return cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=container["name"]),
            image=cri.ImageSpec(image=container["image"]),
            command=[expand(part, env) for part in container.get("command", ())],
            args=[expand(part, env) for part in container.get("args", ())],
            working_dir=container.get("workingDir", ""),
            envs=[cri.KeyValue(key=key, value=value) for key, value in (mark | env).items()],
            mounts=mounts,
            log_path=f"{container['name']}.log",
            linux=cri.LinuxContainerConfig(resources=_resources(container), security_context=_security(pod, container)),
        )

    async def _end_of(self, pod: Pod, container: Object, made: str, lines: BinaryIO) -> Any:
        """The `cri.ContainerStatus` of a container when it has ended; until then its log is passed on."""
        request = cri.ContainerStatusRequest(container_id=made)
        unsure = "memory" in _limits(container)
        while True:
            status = (await self._daemon.runtime.ContainerStatus(request)).status
            for text in _read(lines):
                pod.log(text, container["name"])
            if status.state == cri.CONTAINER_EXITED:
                # containerd is told of an end and of an OOM kill in two ways; the second may take longer.
                if not (unsure and status.exit_code == 137 and status.reason == "Error"):
                    return status
                unsure = False
            await asyncio.sleep(POLL_S)

    async def _stop(self, pod: Pod, made: str) -> None:
        """SIGTERM, and all is killed when the pod's grace, which may be made shorter meanwhile, has passed."""
        clock, stop = asyncio.get_running_loop().time, self._daemon.runtime.StopContainer
        began, grace = clock(), cri.StopContainerRequest(container_id=made, timeout=ceil(pod.grace_s))
        gentle = asyncio.create_task(stubborn(stop, grace))
        while not gentle.done() and clock() - began < pod.grace_s:
            await asyncio.sleep(POLL_S)
        await stubborn(stop, cri.StopContainerRequest(container_id=made, timeout=0))
        await gentle


def _tell(pod: Pod, container: Object, status: Any, folder: Path) -> None:
    said = _last_words(folder, container).read_text(errors="replace")[:4096]
    pod.exited(status.exit_code, status.reason, container["name"], said or status.message)


def _last_words(folder: Path, container: Object) -> Path:
    """What a container writes to its termination message path."""
    return folder / "last-words" / container["name"]


def _read(lines: BinaryIO) -> Iterator[bytes]:
    """The text of the whole lines that have come. Each is `TIME stdout|stderr F|P TEXT`; with P the text goes on."""
    while line := lines.readline():
        if not line.endswith(b"\n"):
            lines.seek(-len(line), os.SEEK_CUR)
            return
        _, _, tag, text = line.split(b" ", 3)
        yield text if tag == b"F" else text[:-1]


def _sandbox(pod: Pod, folder: Path) -> Any:
    """The `cri.PodSandboxConfig` of a pod."""
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=pod.name, uid=pod.uid, namespace=pod.namespace),
        log_directory=str(folder / pod.uid / "logs"),
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=f"/{memory.PARENT}",
            security_context=cri.LinuxSandboxSecurityContext(namespace_options=_NAMESPACES),
        ),
    )


_NAMESPACES = cri.NamespaceOption(network=cri.NODE, pid=cri.CONTAINER, ipc=cri.POD)


def _mount(path: str, source: Path, read_only: bool) -> Any:
    return cri.Mount(container_path=path, host_path=str(source.resolve()), readonly=read_only)


def _limits(container: Object) -> Mapping[str, str]:
    limits: Mapping[str, str] = container.get("resources", {}).get("limits", {})
    return limits


def _resources(container: Object) -> Any:
    """The `cri.LinuxContainerResources` of a container's limits."""
    found, limits = cri.LinuxContainerResources(), _limits(container)
    if "cpu" in limits:
        found.cpu_period = _PERIOD_US
        found.cpu_quota = int(parse_quantity(limits["cpu"]) * _PERIOD_US)
    if "memory" in limits:
        found.memory_limit_in_bytes = int(parse_quantity(limits["memory"]))
        if cgroups.swap_limit():
            found.memory_swap_limit_in_bytes = found.memory_limit_in_bytes
    return found


def _security(pod: Pod, container: Object) -> Any:
    """The `cri.LinuxContainerSecurityContext` of what pod and container ask for."""
    asked = pod.spec.get("securityContext", {}) | container.get("securityContext", {})
    capabilities = asked.get("capabilities", {})
    kind = asked.get("seccompProfile", {}).get("type", "Unconfined")
    found = cri.LinuxContainerSecurityContext(
        namespace_options=_NAMESPACES,
        readonly_rootfs=asked.get("readOnlyRootFilesystem", False),
        no_new_privs=not asked.get("allowPrivilegeEscalation", True),
        capabilities=cri.Capability(
            add_capabilities=capabilities.get("add", ()), drop_capabilities=capabilities.get("drop", ())
        ),
        seccomp=cri.SecurityProfile(profile_type=cri.SecurityProfile.ProfileType.Value(kind)),
        supplemental_groups=[asked["fsGroup"]] if "fsGroup" in asked else [],
    )
    if "runAsUser" in asked:
        found.run_as_user.value = asked["runAsUser"]
    if "runAsGroup" in asked:
        found.run_as_group.value = asked["runAsGroup"]
    return found
