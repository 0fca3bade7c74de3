"""A run's folder: what it was asked to do, where its parts lie, and what it has got so far.

runs/<run>/run.json                      the configuration it started with
runs/<run>/{eval-before,epoch-001,eval-001,…,eval-after}/{calls/,rollouts/,rollouts.parquet}
runs/<run>/epoch-001/train.json          the trainer's result
runs/<run>/checkpoints/                  optimizer state and exported model folders
runs/<run>/capability.json               what the engines can do, as measured at the last start
runs/<run>/stages.jsonl, logs/, report.html, summary.json
"""

import fcntl
import json
import os
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy_addons.errors import ConfigError
from tasks import adapters
from tasks import builtin
from tasks import taskset
from tasks.adapters import CHOICES
from tasks.adapters import Choices
from tasks.provider import Provider
from tasks.report import write_text
from tasks.statistics import Rate
from tasks.taskset import Task
from training.job import BEST

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "models"
BUILTIN_SEED = 0
BUILTIN_TRAIN, BUILTIN_HELDOUT = 240, 60

# What may differ when a run is taken up again: how it is carried out and how long, not what it is.
MAY_CHANGE = frozenset(
    {
        *("epochs", "evaluate_first", "evaluate_every", "evaluate_last", "loggers"),
        *("concurrency", "retries", "profile", "sandbox", "limits", "engine", "engine_replicas", "kubernetes", "judge"),
        *("prices", "compare", "mode", "group_deadline_s", "continue_cut"),
        *("fit", "keep", "alike", "min_reward"),
    }
)


@dataclass(frozen=True)
class RunFolder:
    """One run's folder; `config` is the run's whole configuration as JSON data."""

    path: Path
    config: dict[str, Any]

    def epoch(self, number: int) -> Path:
        """Folder of a training epoch, from 1."""
        return self.path / f"epoch-{number:03}"

    def train_result(self, number: int) -> dict[str, Any] | None:
        """The trainer's result for an epoch, or None if it has not been trained."""
        file = self.epoch(number) / "train.json"
        return json.loads(file.read_text()) if file.exists() else None

    def weights(self, version: int, base: Path) -> tuple[Path, int]:
        """Model folder and version after `version` epochs; an epoch that could train nothing left them as they were."""
        for epoch in range(version, 0, -1):
            result = self.train_result(epoch)
            if result and result["hf_path"]:
                return Path(result["hf_path"]), epoch
        return base, 0


def keep_best(run: RunFolder, epoch: int, success: Rate) -> None:
    """Name the checkpoint after `epoch` in `checkpoints/best.json` if no held-out success so far is as high; it is
    then kept for as long as it is the best. Nothing happens before the first update or without a verdict."""
    _, version = run.weights(epoch, Path())
    if not version or success.rate is None:
        return
    file = run.path / "checkpoints" / BEST
    best = json.loads(file.read_text()) if file.exists() else None
    if best is None or success.rate > best["rate"]:
        checkpoint = Path(run.train_result(version)["checkpoint"]).name  # type: ignore[index]  # it has weights
        write_text(file, json.dumps({"checkpoint": checkpoint, "epoch": epoch, **asdict(success)}))


def open_run(name: str, runs_dir: str, config: dict[str, Any]) -> RunFolder:
    """Make a run's folder, or take the run of that name up again.

    Raises ConfigError if it was started with another configuration, naming each field that differs, or if `runs_dir`
    is no folder to write to.
    """
    path = Path(runs_dir).absolute() / name
    file = path / "run.json"
    if file.exists():
        try:
            before = json.loads(file.read_text())["config"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"run {name!r}: {file} cannot be read ({error!r}): choose another name") from None
        if _flow(before) != _flow(config):
            raise ConfigError(f"run {name!r} is {_flow(before)}: choose another name")
        differ = [
            f"{key} was {before[key]!r}, now {config[key]!r}"
            for key in config
            if key in before and key not in MAY_CHANGE and not _same(before[key], config[key])
        ]
        if differ:
            raise ConfigError(f"run {name!r} exists with other settings ({'; '.join(differ)}): choose another name")
    text = json.dumps({"run": name, "seed": config["seed"], "model": config["model"], "config": config}, indent=1)
    temporary = file.with_suffix(".tmp")
    try:
        path.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text)
        os.replace(temporary, file)
    except OSError as error:
        raise ConfigError(
            f"runs_dir: {path} cannot be written ({error.strerror}): name a folder that can, with space on its disk"
        ) from None
    return RunFolder(path, config)


def _same(before: Any, now: Any) -> bool:
    """Whether two values agree in all that both know: a field that is newer than the run says nothing about it."""
    if isinstance(before, dict) and isinstance(now, dict):
        return all(_same(before[key], now[key]) for key in before.keys() & now.keys())
    return bool(before == now)


def _flow(config: Mapping[str, Any]) -> str:
    """What the run of such a configuration is, by a field that it alone has."""
    kinds = {"fit": "a supervised fit", "proposals": "a curation", "attempts": "an evaluation"}
    return next((kind for field, kind in kinds.items() if field in config), "a training run")


@contextmanager
def held(run: RunFolder) -> Iterator[None]:
    """Keep the run for this process; the kernel lets go if we die. Raises ConfigError if another process has it."""
    with exclusive(run.path / ".lock", f"run {run.path.name!r} is under way in another process: wait for it or end it"):
        yield


@contextmanager
def exclusive(file: Path, otherwise: str) -> Iterator[None]:
    """Make and lock `file` for the time of the block. Raises ConfigError(otherwise) if another process has it."""
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(otherwise) from None
        yield


def load_tasks(source: str, judge: Provider | None = None, choices: Choices = CHOICES) -> list[Task]:
    """The tasks of a set: `builtin`, a folder of Harbor tasks, or a benchmark as NAME:FOLDER, whose graders
    may ask `judge`; `choices` are about a benchmark only. Raises ConfigError.

    What is no folder of Harbor tasks is written as one to the cache folder first.
    """
    if source != "builtin":
        if adapters.split(source):
            return adapters.load(source, ROOT / ".openforge" / "tasks", judge, choices)
        return taskset.load(Path(source))
    folder = ROOT / ".openforge" / "tasks" / f"builtin-{BUILTIN_SEED}-{BUILTIN_TRAIN}-{BUILTIN_HELDOUT}"
    if not folder.exists():
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
        builtin.generate(temporary, BUILTIN_SEED, BUILTIN_TRAIN, BUILTIN_HELDOUT)
        temporary.rename(folder)
    return taskset.load(folder)


def model_path(name: str) -> Path:
    """Where the folder of a model lies that has a name of its own."""
    return {"tiny": MODELS / "tiny", "smollm2": ROOT / ".openforge" / "models" / "smollm2"}[name]


def model_folder(model: str) -> Path:
    """The Hugging Face folder of `model`: a name or a path. Raises ConfigError with the remedy."""
    remedy = {"tiny": "run `make warm-start`", "smollm2": "run `make model-smollm2`"}.get(model)
    folder = model_path(model) if remedy else Path(model)
    if not (folder / "config.json").exists():
        raise ConfigError(f"model: {folder} holds no model; {remedy or 'name a folder with config.json and weights'}")
    return folder.absolute()
