"""Reads a task set: one Harbor-format folder a task (`instruction.md`, `task.toml`, `environment/`, `tests/test.sh`).

All problems of a set are told at once, one line each, before anything starts.

    python -m tasks.taskset validate DIR                    # one line per problem; exit status 1 if there is any
    python -m tasks.taskset canaries DIR                    # the solution scores 1, doing nothing 0, each time
    python -m tasks.taskset manifest DIR                    # write DIR/manifest.parquet
    python -m tasks.taskset import MAPPING SOURCE DIR       # make task folders of a data set (`tasks.importing`)
"""

import argparse
import asyncio
import hashlib
import os
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy_addons.errors import ConfigError
from proxy_addons.errors import OpenForgeError
from proxy_addons.hosts import check_hosts
from proxy_addons.identity import check_name
from tasks import mcp
from tasks import steps
from tasks.beside import Beside
from tasks.mcp import McpServer
from tasks.rewards.rubric import read_rubric
from tasks.rewards.scoring import read_scoring
from tasks.steps import Step

_DEFAULT_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Task:
    """One task. `digest` is the sha256 over all its files: equal digests are the same task.

    `allow_hosts` are what its sandbox may reach, `model_hosts` what the policy stands in for there besides the known
    model APIs (`proxy_addons.egress`); without any the sandbox has no way out but the base URL. `image` is its
    container image, `memory_mb` and `cpus` what it asks for; None where it does not say. `judged`: its reward counts a
    rubric, so that a judge must be configured. `beside`: a benchmark's services and grader (`tasks.adapters`). `steps`:
    in a task of several, which are run one after the other, and `step_reward` how their rewards become one
    (`tasks.steps`). `mcp_servers`: whose tools the policy has besides the harness's own (`tasks.mcp`). `misleading`:
    texts of tool results that were put there to mislead (`tasks.behaviour`).
    """

    id: str
    kind: str
    split: str
    instruction: str
    folder: Path
    agent_timeout_s: float
    verifier_timeout_s: float
    digest: str
    allow_hosts: tuple[str, ...] = ()
    model_hosts: tuple[str, ...] = ()
    image: str | None = None
    memory_mb: int | None = None
    cpus: float | None = None
    judged: bool = False
    beside: Beside | None = None
    steps: tuple[Step, ...] = ()
    step_reward: str = "mean"
    mcp_servers: tuple[McpServer, ...] = ()
    misleading: tuple[str, ...] = ()

    @property
    def environment(self) -> Path:
        """The files that are copied to the workspace."""
        return self.folder / "environment"

    @property
    def tests(self) -> Path:
        return self.folder / "tests"


def load(path: Path) -> list[Task]:
    """The tasks below `path`, by id. Raises ConfigError with one line per problem."""
    path = Path(path)
    folders = sorted(p for p in path.glob("*/") if not p.name.startswith("."))
    if not folders:
        raise ConfigError(f"task set {path}: no task folders there; name a folder with one Harbor folder a task")
    tasks, problems = [], []
    for folder in folders:
        task, wrong = read(folder)
        problems += [f"task {folder.name}: {problem}" for problem in wrong]
        if task:
            tasks.append(task)
    if problems:
        raise ConfigError("\n".join(problems))
    return tasks


def digest(folder: Path) -> str:
    """sha256 over the names and bytes of all files below `folder`."""
    total = hashlib.sha256()
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        name, data = file.relative_to(folder).as_posix().encode(), file.read_bytes()
        total.update(b"%d %d\n" % (len(name), len(data)) + name + data)
    return total.hexdigest()


def read(folder: Path) -> tuple[Task | None, list[str]]:
    """The task in `folder`, or None and what is wrong with it, one line each."""
    problems = []
    try:
        check_name("folder name", folder.name)
    except ConfigError as error:
        problems.append(str(error))
    settings, wrong = _settings(folder / "task.toml")
    several = bool(settings.get("steps")) or (folder / "steps").is_dir()
    instruction = steps.instruction(folder)
    if several:
        instruction = "\n\n".join(step.instruction for step in settings.get("steps", ()))
    elif not instruction:
        problems.append(steps.NO_INSTRUCTION)
    if not several and not (folder / "tests/test.sh").is_file():
        problems.append("tests/test.sh is missing; it writes the reward")
    if not (folder / "environment").is_dir():
        problems.append("environment/ is missing; it holds the workspace's files and may be empty")
    problems += wrong
    if settings:
        try:
            scoring = read_scoring(folder)
            settings["judged"] = scoring.wants_judge
            if scoring.wants_judge:
                read_rubric(folder)
            compared = scoring.outcome in ("exact", "math", "rubric")
            if compared and several:
                problems.append("task.toml: metadata.reward.outcome must be reward or tests in a task of several steps")
            elif scoring.outcome in ("exact", "math") and not (folder / "tests/expected.txt").is_file():
                problems.append("tests/expected.txt is missing; the answer is compared with it")
        except ConfigError as error:
            problems += str(error).splitlines()
    if problems:
        return None, problems
    return Task(id=folder.name, instruction=instruction, folder=folder, digest=digest(folder), **settings), []


def _settings(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Kind, split, timeouts and hosts. Sets made elsewhere name no kind and no split: `other` and `train`."""
    try:
        data = tomllib.loads(file.read_text())
    except OSError:
        return {}, ["task.toml is missing"]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return {}, [f"task.toml cannot be read: {error}"]
    problems = []
    tables = {}
    for name in ("metadata", "agent", "verifier", "environment"):
        tables[name] = data.get(name, {})
        if not isinstance(tables[name], dict):
            problems.append(f"task.toml: {name} must be a table")
            tables[name] = {}
    settings: dict[str, Any] = {}
    for key, default in (("kind", "other"), ("split", "train")):
        settings[key] = tables["metadata"].get(key, default)
        if not isinstance(settings[key], str):
            problems.append(f"task.toml: metadata.{key} must be text, not {settings[key]!r}")
    try:
        settings["misleading"] = tuple(_texts(tables["metadata"].get("misleading", [])))
        if "" in settings["misleading"]:
            raise ValueError("must be no empty text, which every result has")
    except ValueError as error:
        problems.append(f"task.toml: metadata.misleading: {error}")
    for key in ("allow_hosts", "model_hosts"):
        try:
            named = _texts(tables["environment"].get(key, []))
            if key == "allow_hosts":  # Harbor's own name for it, since its schema 1.3
                named = [*named, *_texts(tables["environment"].get("allowed_hosts", []))]
            settings[key] = check_hosts(named)
        except ValueError as error:
            problems.append(f"task.toml: environment.{key}: {error}")
    for name in ("agent", "verifier"):
        seconds = tables[name].get("timeout_sec", _DEFAULT_TIMEOUT_S)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
            problems.append(f"task.toml: {name}.timeout_sec must be a positive number of seconds, not {seconds!r}")
        else:
            settings[f"{name}_timeout_s"] = float(seconds)
    asked = tables["environment"]
    settings["image"] = asked.get("docker_image")
    if not isinstance(settings["image"], str | None):
        problems.append(f"task.toml: environment.docker_image must be text, not {settings['image']!r}")
    settings["mcp_servers"], wrong = mcp.read(asked.get("mcp_servers", []))
    problems += wrong
    if "steps" in data or (file.parent / "steps").is_dir():
        limits = (
            settings.get("agent_timeout_s", _DEFAULT_TIMEOUT_S),
            settings.get("verifier_timeout_s", _DEFAULT_TIMEOUT_S),
        )
        settings["steps"], wrong = steps.read(file.parent, data, *limits)
        settings["step_reward"] = data.get("multi_step_reward_strategy", "mean")
        problems += wrong
    for key, kinds in (("memory_mb", (int,)), ("cpus", (int, float))):
        settings[key] = asked.get(key)
        if settings[key] is not None and (type(settings[key]) not in kinds or not 0 < settings[key] < 1e9):
            problems.append(f"task.toml: environment.{key} must be a positive number, not {settings[key]!r}")
    return settings, problems


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"must be a list of texts, not {value!r}")
    return value


def validate(path: Path) -> list[str]:
    """All problems of the task set below `path`, one line each: what `load` refuses, and what is likely a mistake."""
    from tasks.manifest import differences

    try:
        tasks = load(path)
    except ConfigError as error:
        return str(error).splitlines()
    problems, first = [], dict[str, str]()
    for task in tasks:
        twin = first.setdefault(task.digest, task.id)
        if twin != task.id:
            problems.append(f"task {task.id}: is the same, file by file, as {twin}")
    return problems + differences(path, tasks)


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tasks.taskset", description="task sets: check, list, import")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (
        ("validate", "check every task's files"),
        ("canaries", "score every task's solution, and an untouched workspace, in the sandbox"),
        ("manifest", "write manifest.parquet"),
    ):
        commands.add_parser(name, help=what).add_argument("folder", type=Path)
    importing = commands.add_parser("import", help="make task folders of the rows of a data set")
    importing.add_argument("mapping", type=Path, help="TOML or JSON file that says which column is what")
    importing.add_argument("source", help="data file, or the name of a data set")
    importing.add_argument("folder", type=Path, help="where the task folders go; must not exist")
    given = parser.parse_args(arguments)
    try:
        problems = _run(given)
    except OpenForgeError as error:
        problems = str(error).splitlines()
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return int(bool(problems))


def _run(given: argparse.Namespace) -> list[str]:
    """Do what was asked; the problems that were found."""
    # Here, because they read tasks by this module.
    from tasks import importing
    from tasks import manifest
    from tasks.curate import canaries
    from tasks.sandboxes import choose

    if given.command == "validate":
        problems = validate(given.folder)
        if not problems:
            print(f"{given.folder}: nothing wrong with {len(load(given.folder))} tasks")
        return problems
    if given.command == "canaries":
        tasks = load(given.folder)
        dropped = asyncio.run(canaries.check_all(tasks, choose("auto"), at_once=2 * (os.cpu_count() or 1)))
        print(f"{given.folder}: {len(tasks) - len(dropped)} of {len(tasks)} tasks pass")
        return [f"task {name}: {reason}" for name, reason in dropped.items()]
    if given.command == "import":
        mapping = importing.read_mapping(given.mapping)
        count = importing.import_rows(importing.rows(given.source, mapping), mapping, given.folder)
        print(f"{given.folder}: {count} tasks")
    print(manifest.write(given.folder, load(given.folder)))
    return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
