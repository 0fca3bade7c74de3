"""Container logs as a kubelet keeps them: in files that are rotated, of which only the newest can be asked for."""

import asyncio
import time
from datetime import UTC
from datetime import datetime

from aiohttp import web

from tests.kube.objects import Object
from tests.kube.resources import ApiError

ROTATE_AT = 10 * 2**20


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[float, bytes]] = []
        """When it was written, and the line with its line feed."""
        self.file = 0
        self.closed = False
        self.grown = asyncio.Event()
        self._size = 0

    def write(self, text: bytes) -> None:
        for line in text.splitlines(keepends=True):
            if self._size + len(line) > ROTATE_AT:
                self.lines, self._size, self.file = [], 0, self.file + 1
            self.lines.append((time.time(), line))
            self._size += len(line)
        self.wake()

    def close(self) -> None:
        self.closed = True
        self.wake()

    def wake(self) -> None:
        self.grown.set()
        self.grown = asyncio.Event()


class Logs:
    def __init__(self) -> None:
        self._logs: dict[tuple[str, str], Log] = {}

    def of(self, uid: str, container: str) -> Log:
        return self._logs.setdefault((uid, container), Log())

    def drop(self, uid: str) -> None:
        """The pod is gone, and its logs with it; who follows them comes to an end."""
        for key in [key for key in self._logs if key[0] == uid]:
            self._logs.pop(key).close()

    async def serve(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """GET …/log with container, follow, tailLines, limitBytes, sinceSeconds, timestamps."""
        query, name = request.query, pod["metadata"]["name"]
        container = query.get("container") or pod["spec"]["containers"][0]["name"]
        status = pod.get("status", {})
        statuses = [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]
        state: Object = next((entry["state"] for entry in statuses if entry["name"] == container), {})
        if query.get("previous") == "true":
            text = f'previous terminated container "{container}" in pod "{name}" not found'
            raise ApiError(400, "BadRequest", text)
        if not {"running", "terminated"} & state.keys():
            why = state.get("waiting", {}).get("reason", "PodInitializing")
            raise ApiError(400, "BadRequest", f'container "{container}" in pod "{name}" is waiting to start: {why}')
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        log = self.of(pod["metadata"]["uid"], container)
        lines = [entry for entry in log.lines if entry[0] >= time.time() - float(query.get("sinceSeconds", "inf"))]
        if "tailLines" in query:
            lines = lines[len(lines) - min(len(lines), int(query["tailLines"])) :]
        left = int(query.get("limitBytes", 2**62))
        file, seen = log.file, len(log.lines)
        while True:
            part = b"".join(_stamp(at, line) if query.get("timestamps") == "true" else line for at, line in lines)
            await response.write(part[:left])
            left -= len(part)
            if left <= 0 or query.get("follow") != "true":
                return response
            while seen == len(log.lines) and file == log.file:
                if log.closed:
                    return response
                await log.grown.wait()
            # What was written to the last file after we looked is lost, as it is on a node.
            lines = log.lines[seen if file == log.file else 0 :]
            file, seen = log.file, len(log.lines)


def _stamp(at: float, line: bytes) -> bytes:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ ").encode() + line
