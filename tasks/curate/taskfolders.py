"""Folders of task folders: what a round proposed, what goes into a probe, what is kept."""

import asyncio
import shutil
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path

from tasks import manifest
from tasks import taskset
from tasks.curate import draft
from tasks.curate.draft import Labels
from tasks.curate.draft import Unusable
from tasks.curate.proposer import Proposer
from tasks.curate.wishes import Wish
from tasks.taskset import Task
from tasks.uncancelled import in_thread


async def propose(
    folder: Path, wishes: Sequence[Wish], proposer: Proposer, parents: Mapping[str, Path]
) -> dict[str, str]:
    """Fill `folder` with a task folder a wish; `parents` are the folders of refined tasks, by id. What lies there
    already is not proposed again. Returns task id → why there is none.

    Raises what `Proposer.propose` raises, except Unusable.
    """
    folder.mkdir(parents=True, exist_ok=True)
    slots = asyncio.Semaphore(proposer.at_once)
    refused: dict[str, str] = {}

    async def one(wish: Wish) -> None:
        target = folder / wish.task
        if target.is_dir():
            return
        async with slots:
            try:
                found = await proposer.propose(wish, parents[wish.parent] if wish.parent else None)
            except Unusable as error:
                refused[wish.task] = str(error)
                return
        await in_thread(draft.write, found, Labels(wish.family, wish.split, wish.level), target)

    try:
        async with asyncio.TaskGroup() as group:
            for wish in wishes:
                group.create_task(one(wish))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return refused


def collect(tasks: Sequence[Task], folder: Path) -> Path:
    """Make `folder` a task set of copies of `tasks`, with its manifest; whole or not at all. Returns it."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for task in tasks:
        shutil.copytree(task.folder, part / task.id, symlinks=True)
    manifest.write(part, taskset.load(part))
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    return folder
