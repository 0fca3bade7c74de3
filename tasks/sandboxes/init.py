"""First process of every local sandbox (pid 1): runs on the system's python3, standard library only.

    python3 init.py WAYS MAX_PROCESSES MAX_FILE_BYTES COMMAND...

* WAYS: of `proxy,tools`, which of 127.0.0.1:8080 and :8081 are carried to the unix sockets beside this file, the
  sandbox's only ways out.
* MAX_PROCESSES 0 means that somebody else (a cgroup) holds the limit.
* Standard input is a lifeline: it ends when the controller dies, and then everything here dies with pid 1.
* How the command ended goes into `report`, one JSON object a line, because an exit code alone cannot tell
  `exit 137` from a process killed by signal 9.
"""

import errno
import json
import os
import resource
import socket
import sys
import threading

FOLDER = os.path.dirname(os.path.abspath(__file__))
PORTS = {"proxy": 8080, "tools": 8081}


def report(**fields: object) -> None:
    """Append a line to the report."""
    with open(os.path.join(FOLDER, "report"), "a") as file:
        file.write(json.dumps(fields) + "\n")


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Carry bytes one way and pass the end of the stream on, so that a half-closed connection stays usable."""
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        # One side is gone: the other must learn it at once instead of waiting for its own time-out.
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                if error.errno != errno.ENOTCONN:
                    raise


def carry(inner: socket.socket, way: str) -> None:
    """Carry one connection out and back."""
    outer = socket.socket(socket.AF_UNIX)
    with inner, outer:
        outer.connect(os.path.join(FOLDER, f"{way}.sock"))
        back = threading.Thread(target=pump, args=(outer, inner))
        back.start()
        pump(inner, outer)
        back.join()


def accept(listener: socket.socket, way: str) -> None:
    """Carry every connection, each in its own thread."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=carry, args=(connection, way), daemon=True).start()


def watch_lifeline() -> None:
    """End everything when the controller is gone."""
    while os.read(0, 4096):
        pass
    os._exit(1)


def start(command: list[str]) -> int:
    """Fork and exec; the pipe closes by itself when exec works and carries the error when it does not."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.execvp(command[0], command)
        except OSError as error:
            os.write(writer, f"{command[0]}: {error.strerror}".encode())
            os._exit(127)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        trouble = pipe.read()
    if trouble:
        report(start_failed=trouble)
        sys.exit(127)
    return child


def main() -> None:
    """Start the command, carry its connections, and end with it."""
    ways = sys.argv[1].split(",") if sys.argv[1] else []
    processes, file_bytes = (int(value) for value in sys.argv[2:4])
    command = sys.argv[4:]
    report(started=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    if processes:
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    listeners = {way: socket.create_server(("127.0.0.1", PORTS[way]), backlog=64) for way in ways}
    child = start(command)
    for way, listener in listeners.items():
        threading.Thread(target=accept, args=(listener, way), daemon=True).start()
    threading.Thread(target=watch_lifeline, daemon=True).start()
    while True:  # pid 1 also reaps what the command left behind
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            break
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = usage.ru_utime + usage.ru_stime + sum(os.times()[:2])
    code = os.waitstatus_to_exitcode(status)
    report(**{"code" if code >= 0 else "signal": abs(code), "cpu_s": cpu})
    sys.stdout.flush()
    os._exit(code if code >= 0 else 128 - code)


main()
