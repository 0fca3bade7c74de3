"""Benchmarks as task sets: one module a set, found here by name. Adding one is adding a file and its name below.

    tasks: claweval:/path/to/checkout          # in a run's configuration: NAME:FOLDER
    python -m tasks.list claweval:/path/to/checkout

A module reads the set's own files, which the user brings, into `Item`s that say what they need, and has the set's
scoring rule as a plain function. Where a set can run here, `write` makes a Harbor folder of an item.
"""

import contextlib
import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from typing import Literal
from typing import Protocol
from typing import TypeVar
from typing import cast

import yaml
from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import ValidationError

from proxy_addons.errors import ConfigError
from tasks import taskset
from tasks.provider import Provider
from tasks.taskset import Task

NAMES = ("claweval", "mcp_atlas", "online_mind2web", "osworld", "qwenclawbench", "terminal_bench", "webvoyager")

log = logging.getLogger(__name__)

_MAX_ID = 40
_Record = TypeVar("_Record", bound=BaseModel)


class Choices(BaseModel):
    """What a run may choose about a benchmark (`benchmark` in its configuration)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tools: Literal["commands", "mcp"] = Field(
        default="commands", description="how the policy gets a task's tools: commands in a SKILL.md, or an MCP server"
    )
    train_share: float = Field(
        default=0.0, ge=0, lt=1, description="share of the tasks that may be trained on; the others stay held out"
    )


CHOICES = Choices()
"""What holds where a run chooses nothing."""


@dataclass(frozen=True)
class Need:
    """Something that a task needs besides a harness and a shell: a `kind` in a word and which one.

    `missing` says what to do about it where it is not here; empty: it is here.
    """

    kind: str
    name: str = ""
    missing: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


@dataclass(frozen=True)
class Item:
    """One task of a benchmark. `id` is ours and can be part of a rollout's id; `record` is the set's own data.

    `kin` are marks of what it shares with others of the set: tasks with one mark in common are on one side of a split.
    `split` and `tools` are the run's (`Choices`).
    """

    id: str
    instruction: str
    kind: str
    needs: tuple[Need, ...]
    record: BaseModel
    kin: tuple[str, ...] = ()
    split: str = "heldout"
    tools: str = "commands"

    @property
    def missing(self) -> tuple[Need, ...]:
        """The needs that are not met here; none: it can run."""
        return tuple(need for need in self.needs if need.missing)


class Adapter(Protocol):
    """What a module offers. `ABOUT` is the set in a few words, `GIVE` what folder it wants.

    Only one whose tasks can run here has `write`, and, where tasks have services or graders of their own, a class
    `Beside` (`tasks.beside`) that is made of the set's folder, an item's record and the run's judge or None. One whose
    `write` heeds `Item.tools` says so: `TOOLS = True`.
    """

    NAME: str
    ABOUT: str
    GIVE: str

    def read(self, folder: Path) -> list[Item]:
        """The set's tasks, in its order. Raises ConfigError, one line per problem."""

    def write(self, item: Item, source: Path, out: Path) -> None:
        """Make `out` a Harbor folder of an item for which nothing is missing; `source` is what `read` was given."""


def get(name: str) -> Adapter:
    """The adapter `name`. Raises ConfigError."""
    if name not in NAMES:
        raise ConfigError(f"task set {name!r}: no such benchmark; use one of {', '.join(NAMES)}")
    return cast(Adapter, import_module(f"{__name__}.{name}"))


def is_benchmark(source: str) -> bool:
    """Whether `source` is spelled NAME:FOLDER."""
    name, colon, _ = source.partition(":")
    return bool(colon) and "/" not in name


def split(source: str) -> tuple[Adapter, Path] | None:
    """The adapter and folder of `NAME:FOLDER`; None if `source` is not spelled so."""
    if not is_benchmark(source):
        return None
    name, _, folder = source.partition(":")
    adapter = get(name)
    path = Path(folder).expanduser().absolute()
    if not path.exists():
        raise ConfigError(f"task set {source}: {path} is not there; give {adapter.GIVE}")
    return adapter, path


def load(source: str, cache: Path, judge: Provider | None = None, choices: Choices = CHOICES) -> list[Task]:
    """The tasks of `NAME:FOLDER` that can run here, written as Harbor folders into `cache` first. `judge`: the run's.

    Raises ConfigError if none can, with each thing that is missing and how many tasks lack it, or if `judge` is one
    that the set's graders cannot ask, or for a choice that it does not leave.
    """
    from tasks.adapters.sides import divided  # here, because it reads this module

    found = split(source)
    if found is None:
        raise ConfigError(f"task set {source}: spell it NAME:FOLDER")
    adapter, folder = found
    if choices.tools != CHOICES.tools and not hasattr(adapter, "TOOLS"):
        raise ConfigError(f"benchmark.tools: {adapter.NAME} has no tools to give in another way; leave it out")
    items = adapter.read(folder)
    if choices.train_share:
        items = divided(items, choices.train_share)
    items = [replace(_judged(item) if judge else item, tools=choices.tools) for item in items]
    ready = [item for item in items if not item.missing]
    if not ready:
        lines = (f"task set {source}: {missing}: {remedy}" for missing, remedy in lacking(items))
        raise ConfigError("\n".join([f"task set {source}: none of its {len(items)} tasks can run here", *lines]))
    if len(ready) < len(items):
        left_out = ", ".join(short for short, _ in lacking(items))
        log.warning("task set %s: %d of %d tasks can run here; missing: %s", source, len(ready), len(items), left_out)
    return _written(adapter, ready, folder, cache, judge)


def _judged(item: Item) -> Item:
    """The item where a judge is there."""
    return replace(
        item, needs=tuple(replace(need, missing="") if need.kind == "judge" else need for need in item.needs)
    )


def _written(adapter: Adapter, items: Sequence[Item], source: Path, cache: Path, judge: Provider | None) -> list[Task]:
    """The items as Harbor folders, in a folder that is named after what is in it and so never changes under a run."""
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache, prefix=f".{adapter.NAME}-") as temporary:
        part = Path(temporary, "tasks")
        for item in items:
            (part / item.id).mkdir(parents=True)
            adapter.write(item, source, part / item.id)
        place = cache / f"{adapter.NAME}-{taskset.digest(part)[:16]}"
        if not place.exists():
            with contextlib.suppress(OSError):  # another run was quicker; it wrote the same
                part.rename(place)
    tasks = taskset.load(place)
    beside = getattr(adapter, "Beside", None)
    if beside is None:
        return tasks
    backings = {item.id: beside(source, item.record, judge) for item in items}
    return [replace(task, beside=backings[task.id]) for task in tasks]


def lacking(items: Sequence[Item]) -> list[tuple[str, str]]:
    """What is missing for `items` and what to do about it, by kind, the most frequent first.

    The first is short: `site www.example.com and 12 more (643 tasks)`.
    """
    tasks = Counter(kind for item in items for kind in {need.kind for need in item.missing})
    lines = []
    for kind, count in tasks.most_common():
        needs = [need for item in items for need in item.missing if need.kind == kind]
        names = list(dict.fromkeys(need.name for need in needs if need.name))
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(
            (
                f"{kind}{' ' if names else ''}{''.join(names[:1])}{more} ({count} task{'s' if count > 1 else ''})",
                needs[0].missing,
            )
        )
    return lines


def read_yaml(text: str) -> Any:
    """The value of a YAML text, by the C parser where there is one. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def task_id(text: str) -> str:
    """`text` as a name that can be part of a rollout's id: a long one keeps its start and gets a digest."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if name and len(name) <= _MAX_ID:
        return name
    return f"{name[: _MAX_ID - 9].strip('-') or 'task'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def unique(items: Iterable[Item]) -> list[Item]:
    """The items as a list. Raises ConfigError if two have one id."""
    found = list(items)
    twice = [name for name, count in Counter(item.id for item in found).items() if count > 1]
    if twice:
        raise ConfigError("\n".join(f"task {name}: the set has two tasks of that name" for name in twice))
    return found


class Problems:
    """Collects what is wrong with a set's files, so that all of it is told at once."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def parse(self, where: str, model: type[_Record], data: Any) -> _Record | None:
        """`data` as `model`; None, and a line per problem, if it is not one."""
        try:
            return model.model_validate(data)
        except ValidationError as error:
            for detail in error.errors():
                field = ".".join(map(str, detail["loc"])) or "it"
                self.lines.append(f"{where}: {field}: {detail['msg']}")
            return None

    def parse_yaml(self, file: Path, model: type[_Record], field: str) -> _Record | None:
        """The YAML in `file` as `model`, whose `field` is the name of the file's folder; None, and what is wrong."""
        where = f"{file.parent.name}/{file.name}"
        try:
            data = read_yaml(file.read_text())
        except yaml.YAMLError as error:
            self.lines.append(f"{where}: cannot be read: {str(error).splitlines()[0]}")
            return None
        return self.parse(where, model, {**data, field: file.parent.name} if isinstance(data, dict) else data)

    def raise_any(self, count: int, where: Path, what: str) -> None:
        """Raise ConfigError with what was collected, or because there is no task at all."""
        if self.lines:
            raise ConfigError("\n".join(self.lines))
        if not count:
            raise ConfigError(f"{where}: no {what} there")


def write_harbor(
    out: Path, item: Item, agent_s: float, verifier_s: float, files: Mapping[str, str], more: str = ""
) -> None:
    """Write a Harbor folder: instruction, task.toml (`more` is appended to it), and `files` by path."""
    (out / "environment").mkdir(exist_ok=True)
    (out / "tests").mkdir(exist_ok=True)
    kind = re.sub(r"[^a-z0-9_-]", "_", item.kind.lower())[:30] or "other"
    toml = _TOML.format(kind=kind, split=item.split, agent_s=float(agent_s), verifier_s=float(verifier_s)) + more
    for path, text in {"instruction.md": item.instruction, "task.toml": toml, **files}.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text)


_TOML = """\
version = "1.0"

[metadata]
kind = "{kind}"
split = "{split}"

[agent]
timeout_sec = {agent_s}

[verifier]
timeout_sec = {verifier_s}
"""
