"""The training process of a run, asked as `tasks.update` asks it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil


class Resident:
    """The training process of the run in `folder`."""

    def __init__(self, folder: Path, settings: dict[str, Any], **env: str) -> None:
        self._folder = folder
        self._settings = settings
        self._log = folder / "log"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "training.resident"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("a"),
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | env,
        )

    def job(self, recorded: dict[str, Any], resume: str | None) -> dict[str, Any]:
        """An epoch's update."""
        job = recorded | {"base_model": str(self._folder / "base"), "resume": resume, "seed": 7}
        job |= {"checkpoint_dir": str(self._folder / "checkpoints"), "result": str(self._folder / "result.json")}
        return job | {"settings": self._settings}

    def ask(self, job: dict[str, Any]) -> int:
        """The exit code of a job."""
        file = self._folder / "job.json"
        file.write_text(json.dumps(job))
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def do(self, recorded: dict[str, Any], resume: str | None) -> dict[str, Any]:
        """The result of an epoch's update."""
        assert self.ask(self.job(recorded, resume)) == 0, self._log.read_text()
        found: dict[str, Any] = json.loads((self._folder / "result.json").read_text())
        return found

    def end(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)
        self.process.communicate()


def of_ray(owner: int, kind: str) -> set[int]:
    """The processes of that kind, such as the workers that hold the model, of the Ray that process `owner` started."""
    found = [child.as_dict(["pid", "cmdline"]) for child in psutil.Process(owner).children(recursive=True)]
    return {each["pid"] for each in found if (each["cmdline"] or [""])[0].startswith(f"ray::{kind}")}
