"""What a benchmark's task has beside its sandbox, out of the agent's reach: services while it runs, a grader after."""

from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from typing import Protocol

LEFT = "left.json"
"""What a task's test.sh leaves in the verdict folder for the grader."""


class Beside(Protocol):
    """One task's. Only a benchmark's adapter makes one: a task folder cannot name programs to run out here."""

    def running(self, folder: Path) -> AbstractAsyncContextManager[tuple[str, int] | None]:
        """The services, for the time of the block; where their tools are served, or None if the task has none.

        What they saw is in `folder` afterwards. Raises InfrastructureError if one does not start or dies.
        """

    async def grade(
        self, folder: Path, messages: Sequence[Mapping[str, Any]], left: bytes | None, timeout_s: float
    ) -> dict[str, float]:
        """The parts of the verdict, `reward` among them.

        `folder` is what `running` filled, `messages` the conversation (`tasks.transcript`), `left` what test.sh wrote.
        Raises VerifierError if there is no verdict.
        """
