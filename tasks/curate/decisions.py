"""What a stage decided about each task, one line of JSON each, in a file that a later execution goes on from.

A task whose files have changed since, or whose line is torn, is decided anew.
"""

import asyncio
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import ValidationError
from tenacity import AsyncRetrying
from tenacity import retry_if_exception_type
from tenacity import stop_after_attempt

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from tasks.taskset import Task

Decide = Callable[[Task], Awaitable[str | None]]
"""Why a task should be dropped, `code: detail`; None if a stage has nothing against it."""


class Decision(BaseModel):
    """`reason` None: the stage has nothing against the task. `digest` is that of the files it was about."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str
    digest: str
    reason: str | None


def recall(file: Path) -> dict[str, Decision]:
    """Task id → the last decision in `file`; nothing if there is none."""
    found: dict[str, Decision] = {}
    for line in file.read_text().splitlines() if file.is_file() else []:
        try:
            decision = Decision.model_validate_json(line)
        except ValidationError:  # torn by what ended us; its task is owed
            continue
        found[decision.task] = decision
    return found


async def decide_all(tasks: Sequence[Task], decide: Decide, file: Path, at_once: int) -> dict[str, str]:
    """Task id → why it is dropped, for those that are. What `file` knows is not decided again.

    Raises InfrastructureError if our own machinery fails three times at a task.
    """
    known = recall(file)
    owed = [task for task in tasks if task.id not in known or known[task.id].digest != task.digest]
    slots = asyncio.Semaphore(at_once)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as log:
        if file.stat().st_size:
            log.write("\n")  # after a torn line; an empty one is no decision

        async def one(task: Task) -> None:
            async with slots:
                found = Decision(task=task.id, digest=task.digest, reason=await _decided(task, decide))
                known[task.id] = found
                log.write(f"{found.model_dump_json()}\n")
                log.flush()

        try:
            async with asyncio.TaskGroup() as group:
                for task in owed:
                    group.create_task(one(task))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
    return {task.id: reason for task in tasks if (reason := known[task.id].reason)}


async def _decided(task: Task, decide: Decide) -> str | None:
    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type(InfrastructureError), stop=stop_after_attempt(3), reraise=True
    ):
        with attempt:
            try:
                return await decide(task)
            except ConfigError as error:
                return f"not_scorable: {error}"
    raise AssertionError("tenacity returns or raises")
