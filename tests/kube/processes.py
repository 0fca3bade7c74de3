"""The process kubelet: a pod's containers as processes of this machine, so that a real harness runs where no container
can.

    async with cluster(Processes(tmp_path)) as c: ...

It is a script like any other. What a container would give and this does not: a file system of its own, users, a
network of its own, limits but that of memory (memory.py). Volumes are folders, and the paths where containers mount
them are exchanged for those folders in command, args, env and workingDir (not inside files: mounted.py). Restart
policy, probes and hooks are ignored.
"""

import asyncio
import contextlib
import errno
import os
import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.kube import memory
from tests.kube.objects import Object
from tests.kube.pods import Pod
from tests.kube.variables import Missing
from tests.kube.variables import data_of
from tests.kube.variables import expand
from tests.kube.variables import variables_of

MARK = "OPENFORGE_TEST_CONTAINER"
"""Set in every process of a container: how what it left behind is found, in whatever session it hides."""
RETRY_S = 0.1


@dataclass(frozen=True)
class Command:
    argv: list[str]
    env: dict[str, str]
    cwd: str
    """"" if the container sets none."""
    home: Path
    """A folder of this machine for a container that sets no home."""


class Processes:
    """`images` gives paths inside an image that stand for folders here: {"harness:1": {"/opt/harness": folder}}."""

    def __init__(self, folder: Path, images: Mapping[str, Mapping[str, Path]] | None = None) -> None:
        self._folder, self._images = folder, images or {}

    async def __call__(self, pod: Pod) -> None:
        await pod.schedule()
        limit = pod.spec.get("activeDeadlineSeconds")
        try:
            async with asyncio.timeout(limit):
                await self._live(pod)
        except TimeoutError:
            pod.failed("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")

    async def _live(self, pod: Pod) -> None:
        folder = self._folder / pod.uid
        volumes = {volume["name"]: folder / "volumes" / volume["name"] for volume in pod.spec.get("volumes", ())}
        for volume in pod.spec.get("volumes", ()):
            await self._fill(pod, volume, volumes[volume["name"]])
        if pod.spec.get("initContainers"):
            pod.waiting("PodInitializing")
        for container in pod.spec.get("initContainers", ()):
            if await self._run(pod, container, folder, volumes):
                return
        try:
            async with asyncio.TaskGroup() as group:
                for container in pod.spec["containers"]:
                    group.create_task(self._run(pod, container, folder, volumes))
        except ExceptionGroup as several:
            raise several.exceptions[0] from several

    async def _fill(self, pod: Pod, volume: Object, folder: Path) -> None:
        folder.mkdir(parents=True)
        for source in volume.get("projected", {}).get("sources", [volume]):
            for kind in ("secret", "configMap"):
                if kind in source:
                    await self._write(pod, volume["name"], kind, source[kind], folder)

    async def _write(self, pod: Pod, volume: str, kind: str, source: Object, folder: Path) -> None:
        name = source.get("secretName") or source["name"]
        told = False
        while (data := data_of(pod, kind, name)) is None and not source.get("optional"):
            if not told:
                pod.event("FailedMount", f'MountVolume.SetUp failed for volume "{volume}" : {kind} "{name}" not found')
                told = True
            await asyncio.sleep(RETRY_S)
        items = source.get("items") or [{"key": key, "path": key} for key in data or ()]
        for item in items:
            file = folder / item["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes((data or {})[item["key"]])
            file.chmod(item.get("mode", source.get("defaultMode", 0o644)))

    async def _run(self, pod: Pod, container: Object, folder: Path, volumes: Mapping[str, Path]) -> int:
        """Run one container to its end, report that, and return its exit code."""
        name = container["name"]
        paths = dict(self._images.get(container["image"], {}))
        for mount in container.get("volumeMounts", ()):
            paths[mount["mountPath"]] = volumes[mount["name"]] / mount.get("subPath", "")
            if not paths[mount["mountPath"]].exists():
                paths[mount["mountPath"]].mkdir(parents=True)
        plain = await self._environment(pod, container)
        argv = [expand(part, plain) for part in [*container.get("command", ()), *container.get("args", ())]]
        if not argv:
            pod.waiting("CreateContainerError", "no command specified", name)
            await asyncio.Event().wait()
        home = folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        base = {"PATH": os.environ["PATH"], "HOSTNAME": pod.name, MARK: f"{pod.uid}/{name}"}
        command = self._command(Command(argv, base | plain, container.get("workingDir", ""), home), paths)
        group = memory.group(base[MARK], container)
        output, writes = await _pipe()
        try:
            program = command.argv[0]
            found = os.path.join(command.cwd, program) if "/" in program else program
            if shutil.which(found, path=command.env["PATH"]) is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
            process = await asyncio.create_subprocess_exec(
                *(memory.inside(group, command.argv) if group else command.argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writes,
                stderr=writes,
                env=command.env,
                cwd=command.cwd,
                start_new_session=True,
            )
        except OSError as error:
            text = f"failed to create task for container: exec: {error.filename or argv[0]}: {error.strerror}"
            if group:
                await memory.close(group)
            pod.exited(128, "StartError", name, text)
            return 128
        finally:
            os.close(writes)
        pod.running(name)
        reading = asyncio.create_task(_copy(output, pod, name))
        try:
            await process.wait()
        except asyncio.CancelledError:
            await _stop(process, self._first(process), pod, base[MARK])
            if pod.deleting:
                pod.exited(_code(process), container=name)
            raise
        finally:
            _kill(base[MARK])
            await process.wait()
            await reading
            out_of_memory = await memory.close(group) if group else False
        pod.exited(_code(process), "OOMKilled" if out_of_memory else "", name)
        return _code(process)

    def _command(self, inside: Command, paths: Mapping[str, Path]) -> Command:
        """What to start here for the command of a container that sees `paths`."""
        env = {"HOME": str(inside.home)} | {key: _mapped(value, paths) for key, value in inside.env.items()}
        argv = [_mapped(part, paths) for part in inside.argv]
        return Command(argv, env, _mapped(inside.cwd, paths) or str(inside.home), inside.home)

    def _first(self, process: asyncio.subprocess.Process) -> int:
        """The process id that a signal for the container goes to."""
        return process.pid

    async def _environment(self, pod: Pod, container: Object) -> dict[str, str]:
        """The container's own variables; waits, as a kubelet does, until what they come from is there."""
        while True:
            try:
                return variables_of(pod, container)
            except Missing as missing:
                pod.waiting("CreateContainerConfigError", str(missing), container["name"])
                await asyncio.sleep(RETRY_S)


def _mapped(text: str, paths: Mapping[str, Path]) -> str:
    if not paths:
        return text
    longest_first = "|".join(re.escape(path.rstrip("/")) for path in sorted(paths, key=len, reverse=True))
    folders = {path.rstrip("/"): str(folder) for path, folder in paths.items()}
    return re.sub(rf"(?<![\w./-])({longest_first})(?![\w.-])", lambda m: folders[m[1]], text)


async def _pipe() -> tuple[asyncio.StreamReader, int]:
    """A pipe of our own: asyncio takes a process whose children hold its pipes for one that runs."""
    reads, writes = os.pipe()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(reads, "rb"))
    return reader, writes


async def _copy(stream: asyncio.StreamReader, pod: Pod, container: str) -> None:
    while part := await stream.read(2**16):
        pod.log(part, container)


async def _stop(process: asyncio.subprocess.Process, first: int, pod: Pod, mark: str) -> None:
    """SIGTERM to the first process, as a runtime does; all is killed when it has ended, or its grace has."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(first, signal.SIGTERM)
    clock = asyncio.get_running_loop().time
    began = clock()
    # Looked at again and again: a second delete may shorten it, or the cluster end.
    while process.returncode is None and clock() - began < pod.grace_s:
        await asyncio.sleep(0.02)
    _kill(mark)
    await process.wait()


def _kill(mark: str) -> None:
    for _ in range(2):  # a process that is just becoming another program has no environment for a moment
        for process in psutil.process_iter(["environ"]):
            if (process.info["environ"] or {}).get(MARK) == mark:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def _code(process: asyncio.subprocess.Process) -> int:
    """As a shell writes it: 128 and the signal's number."""
    assert process.returncode is not None
    return process.returncode if process.returncode >= 0 else 128 - process.returncode
