"""What a ClawEval grader is told of a workspace. Runs in the verifier's sandbox on its own python3, nothing else.

Puts the grader's files into the workspace, runs the task's commands there, then reads its files, in the form that
ClawEval's own sandbox has (`cmd:COMMAND` and `file:PATH`), into /verdict/left.json.
"""

import base64
import glob
import json
import os
import shutil
import subprocess
import sys
from typing import Any

TESTS, WORKSPACE, OUT = "/tests", "/workspace", "/verdict/left.json"
MAX_FILES = 50
MAX_OUTPUT = 1 << 20
TEXT = (".txt", ".md", ".csv", ".json", ".yaml", ".yml", ".xml", ".html", ".htm", ".js", ".ts", ".py", ".sh", ".bash",
        ".cfg", ".ini", ".toml", ".log", ".sql", ".r", ".rmd")  # fmt: skip


def run(command: str, timeout_s: float) -> dict[str, Any]:
    """The result of a shell command, as ClawEval's sandbox reports it."""
    # The commands say `python`, which Debian does not have.
    path = f"/tmp/programs:{os.environ['PATH']}"
    try:
        done = subprocess.run(
            command, shell=True, capture_output=True, cwd=WORKSPACE, timeout=timeout_s, env={**os.environ, "PATH": path}
        )
    except subprocess.TimeoutExpired:
        return {"exit_code": -1, "stdout": "", "stderr": f"Timed out after {timeout_s}s"}
    out, err = (text[:MAX_OUTPUT].decode(errors="replace") for text in (done.stdout, done.stderr))
    return {"exit_code": done.returncode, "stdout": out, "stderr": err}


def read(path: str) -> dict[str, Any]:
    """A file's content, as ClawEval's sandbox reports it."""
    if not os.path.isfile(path):
        return {"error": f"File not found: {path}"}
    with open(path, "rb") as file:
        data = file.read()
    if path.lower().endswith(TEXT):
        return {"content": data.decode(errors="replace"), "encoding": "utf-8"}
    return {"content": base64.b64encode(data).decode(), "encoding": "base64"}


def main() -> None:
    """Take the snapshot."""
    with open(f"{TESTS}/snapshot.json") as file:
        asked = json.load(file)
    os.makedirs("/tmp/programs", exist_ok=True)
    os.symlink(sys.executable, "/tmp/programs/python")
    if os.path.isdir(f"{TESTS}/files"):
        shutil.copytree(f"{TESTS}/files", WORKSPACE, dirs_exist_ok=True)
    snapshot = {f"cmd:{command}": run(command, asked["timeout_s"]) for command in asked["commands"]}
    for pattern in asked["files"]:
        if "*" in pattern or "?" in pattern:
            names = sorted(glob.glob(pattern, recursive=True))[:MAX_FILES]
            snapshot.update({f"file:{name}": read(name) for name in names if os.path.isfile(name)})
        else:
            snapshot[f"file:{pattern}"] = read(pattern)
    with open(OUT, "w") as file:
        json.dump(snapshot, file)


main()
