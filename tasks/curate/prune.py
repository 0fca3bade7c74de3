"""Pruning: what can be told without running anything. Why a task goes, in this order:

* `not_valid`, `too_long`, `too_large`, `no_solution`: its own files;
* `contaminated`: it reads like a task that somebody is evaluated on, in another set or held out of this one;
* `near_duplicate`: a task that stays reads alike *and* is solved alike. Both, because "mend the failing test" may well
  be asked of a hundred different programs.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

from tasks import taskset
from tasks.curate.alike import Index
from tasks.curate.alike import pieces
from tasks.taskset import Task

MAX_FILES = 1000
HELDOUT = "heldout"


@dataclass(frozen=True)
class Limits:
    """What a task may be: characters of its instruction, bytes of its folder, and likeness in 0 … 1."""

    instruction_chars: int
    folder_bytes: int
    likeness: float


@dataclass(frozen=True)
class Pruned:
    """The tasks that stay, and task id → why the others go."""

    tasks: Sequence[Task]
    dropped: Mapping[str, str] = field(default_factory=dict)


def prune(folders: Sequence[Path], kept: Sequence[Task], evaluated: Mapping[str, str], limits: Limits) -> Pruned:
    """Prune the proposals in `folders`; `kept` stay whatever comes. `evaluated` are the instructions of evaluation
    sets' tasks, by a name that tells people which they are. Held-out tasks are looked at first, so that a task to train
    on gives way to the one that it is like, and else an earlier proposal stays."""
    dropped: dict[str, str] = {}
    valid: list[Task] = []
    for folder in folders:
        task, problems = taskset.read(folder)
        reason = f"not_valid: {problems[0]}" if task is None else _static(task, limits)
        if task is None or reason:
            dropped[folder.name] = str(reason)
        else:
            valid.append(task)
    wordings, works = Index(limits.likeness), Index(limits.likeness)
    for name, instruction in evaluated.items():
        wordings.add(name, pieces(instruction))
    for task in kept:
        _remember(task, wordings, works)
    stays = []
    for task in sorted(valid, key=lambda task: task.split != HELDOUT):  # stable: otherwise in their order
        if task.split != HELDOUT or evaluated:
            near = wordings.nearest(pieces(task.instruction))
            if near and (task.split != HELDOUT or near[0] in evaluated):
                dropped[task.id] = f"contaminated: its instruction is {near[1]:.0%} that of {near[0]}"
                continue
        if near := works.nearest(_work(task)):
            dropped[task.id] = f"near_duplicate: instruction and solution are {near[1]:.0%} those of {near[0]}"
            continue
        _remember(task, wordings, works)
        stays.append(task)
    order = {folder.name: place for place, folder in enumerate(folders)}
    return Pruned(sorted(stays, key=lambda task: order[task.id]), dropped)


def _remember(task: Task, wordings: Index, works: Index) -> None:
    works.add(task.id, _work(task))
    if task.split == HELDOUT:
        wordings.add(task.id, pieces(task.instruction))


def _work(task: Task) -> frozenset[str]:
    return pieces(task.instruction, (task.folder / "solution/solve.sh").read_text(errors="replace"))


def _static(task: Task, limits: Limits) -> str | None:
    if not (task.folder / "solution/solve.sh").is_file():
        return "no_solution: solution/solve.sh is missing, so nobody knows that it can be solved"
    if len(task.instruction) > limits.instruction_chars:
        return f"too_long: the instruction has {len(task.instruction)} characters, more than {limits.instruction_chars}"
    files = [file for file in task.folder.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    if size > limits.folder_bytes or len(files) > MAX_FILES:
        return f"too_large: {len(files)} files of {size} bytes, more than {MAX_FILES} or {limits.folder_bytes}"
    return None
