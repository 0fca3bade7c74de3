"""Runs in the doctor's pods, from the sidecar image; Python's standard library only.

    python3 -c "$(cat probe.py)" network '{"proxies": [["10.0.0.7", 9100]], "denied": [["1.1.1.1", 443]]}'
    python3 -c "$(cat probe.py)" storage '{"folder": "/runs"}'

It writes a JSON object to the container's termination message, which is found in the pod's status: nothing of a pod's
logs is read.
"""

import http.client
import json
import os
import shutil
import socket
import sys
import tempfile
from typing import Any

MESSAGE = "/dev/termination-log"
RESOLVER = "/etc/resolv.conf"
WAIT_S = 5.0


def reach_proxy(host: str, port: int) -> str:
    """ "" if something there speaks HTTP, else what went wrong. Without a key the right answer is a refusal."""
    connection = http.client.HTTPConnection(host, port, timeout=WAIT_S)
    try:
        connection.request("GET", "/")
        status = connection.getresponse().status
        return "" if status in (401, 404) else f"it answered {status}, which the proxy does not"
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()


def is_open(host: str, port: int) -> bool:
    """Whether a connection can be made."""
    try:
        socket.create_connection((host, port), timeout=WAIT_S).close()
    except OSError:
        return False
    return True


def ways_out() -> list[tuple[str, int]]:
    """What this pod was told of by its kubelet and may not reach either: the Kubernetes API, and name servers."""
    found = []
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        found.append((os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])))
    with open(RESOLVER) as file:
        found += [(words[1], 53) for words in map(str.split, file) if len(words) > 1 and words[0] == "nameserver"]
    return found


def network(given: dict[str, Any]) -> dict[str, Any]:
    """What of `proxies` cannot be reached and what of `denied` can. Raises OSError."""
    denied = [*((host, port) for host, port in given["denied"]), *ways_out()]
    trouble = {f"{host}:{port}": reach_proxy(host, port) for host, port in given["proxies"]}
    return {
        "unreachable": {name: words for name, words in trouble.items() if words},
        "open": [f"{host}:{port}" for host, port in denied if is_open(host, port)],
        "denied": len(denied),
    }


def storage(given: dict[str, Any]) -> dict[str, Any]:
    """Write, sync, rename and read back a file, as the recorder does. Raises OSError."""
    folder = tempfile.mkdtemp(prefix=".doctor-", dir=given["folder"])
    try:
        with open(f"{folder}/new", "wb") as file:
            file.write(b"openforge")
            os.fsync(file.fileno())
        os.replace(f"{folder}/new", f"{folder}/file")
        with open(f"{folder}/file", "rb") as file:
            if file.read() != b"openforge":
                raise OSError("a file was not read as it was written")
        return {"free_bytes": shutil.disk_usage(folder).free}
    finally:
        shutil.rmtree(folder)


def main(arguments: list[str]) -> None:
    """One probe; its result or its failure is the termination message."""
    try:
        said = {"network": network, "storage": storage}[arguments[0]](json.loads(arguments[1]))
    except OSError as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    with open(MESSAGE, "w") as file:
        json.dump(said, file)


if __name__ == "__main__":
    main(sys.argv[1:])
