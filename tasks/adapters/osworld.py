"""OSWorld-Verified: tasks on a desktop, scored by the state they leave (github.com/xlang-ai/OSWorld).

`evaluation_examples/test_all.json` maps an application to task ids; `examples/<application>/<id>.json` is a task, with
`config` (what to set up in the virtual machine) and `evaluator` (what to read there, and the functions that compare).
Set-up, getters and functions are OSWorld's own and need its virtual machine.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import Literal

from pydantic import BaseModel
from pydantic import Field

from proxy_addons.errors import ConfigError
from proxy_addons.errors import VerifierError
from tasks.adapters import Item
from tasks.adapters import Need
from tasks.adapters import Problems
from tasks.adapters import task_id
from tasks.adapters import unique
from tasks.adapters.webvoyager import site

NAME = "osworld"
ABOUT = "tasks on a desktop"
GIVE = "evaluation_examples/ of its repository"

_DESKTOP = "its virtual machine and a harness that drives a desktop; neither is here"
INFEASIBLE = "infeasible"


class Evaluator(BaseModel):
    """Which of OSWorld's functions compare what, and whether all or one of them must hold."""

    func: str | list[str]
    conj: Literal["and", "or"] = "and"
    postconfig: list[dict[str, Any]] = Field(default_factory=list)

    @property
    def infeasible(self) -> bool:
        """Whether the right answer is to give up."""
        return self.func == INFEASIBLE


class Example(BaseModel):
    """A task file. Fields that only OSWorld's own code reads are left out."""

    id: str
    instruction: str
    snapshot: str
    evaluator: Evaluator
    related_apps: list[str] = Field(default_factory=list)
    proxy: bool = False
    source: str | None = None


def read(folder: Path) -> list[Item]:
    """The tasks that test_all.json names, or all where it is missing. Raises ConfigError."""
    examples = folder / "examples"
    if not examples.is_dir():
        raise ConfigError(f"{NAME}: no examples/ in {folder}; give {GIVE}")
    problems, items = Problems(), []
    for file in _files(folder, examples):
        where = file.relative_to(folder).as_posix()
        try:
            data = json.loads(file.read_text())
        except OSError:
            problems.lines.append(f"{where}: is named in test_all.json and not there")
            continue
        except ValueError as error:
            problems.lines.append(f"{where}: is no JSON: {error}")
            continue
        example = problems.parse(where, Example, data)
        if example is not None:
            items.append(_item(example, file.parent.name))
    problems.raise_any(len(items), examples, "task files")
    return unique(items)


def _files(folder: Path, examples: Path) -> list[Path]:
    index = folder / "test_all.json"
    if not index.is_file():
        return sorted(examples.glob("*/*.json"))
    try:
        named = json.loads(index.read_text())
        return [examples / app / f"{name}.json" for app, names in named.items() for name in names]
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(f"{index}: is not a table of applications with their task ids") from None


def _item(example: Example, application: str) -> Item:
    needs = [Need("desktop", example.snapshot, _DESKTOP)]
    if example.proxy:
        needs.append(site(example.source or "the web"))
    return Item(
        id=task_id(f"{application}-{example.id}"),
        instruction=example.instruction,
        kind=application,
        needs=tuple(needs),
        record=example,
    )


def score(evaluator: Evaluator, results: Sequence[float], gave_up: bool) -> float:
    """0.0 to 1.0 of what the evaluator's functions returned, in their order (`DesktopEnv.evaluate`).

    A task that cannot be done is 1 for who gives up (`FAIL` as the last action) and 0 for everybody else; to give up
    on another is 0. `and`: 0 if any is 0, else their mean; `or`: 1 if any is 1, else the largest. Raises VerifierError
    if there are not as many results as functions.
    """
    if evaluator.infeasible:
        return float(gave_up)
    if gave_up:
        return 0.0
    wanted = len(evaluator.func) if isinstance(evaluator.func, list) else 1
    if len(results) != wanted or not results:
        raise VerifierError(f"the evaluator has {wanted} functions and {len(results)} results")
    if evaluator.conj == "or":
        return float(max(results))
    return 0.0 if 0.0 in map(float, results) else sum(results) / len(results)
