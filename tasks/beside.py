"""What a benchmark's task has beside its sandbox, out of the agent's reach: services while it runs, a grader after."""

from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from typing import Protocol

from proxy_addons.errors import InfrastructureError

LEFT = "left.json"
"""What a task's test.sh leaves in the verdict folder for the grader."""
SERVICE_DIED = "service_died"
"""Finding of a rollout that ended so."""


class ServiceDied(InfrastructureError):
    """A service that was well ended by itself, or gave no answer, once the agent had called it: perhaps its doing. So
    the rollout is tried again, but not for ever (`tasks.rollout`)."""

    @property
    def error_class(self) -> str:
        return InfrastructureError.__name__


class Beside(Protocol):
    """One task's. Only a benchmark's adapter makes one: a task folder cannot name programs to run out here."""

    @property
    def has_tools(self) -> bool:
        """Whether `running` serves any; only a local sandbox has a way to them."""

    def running(self, folder: Path) -> AbstractAsyncContextManager[tuple[str, int] | None]:
        """The services, for the time of the block; where their tools are served, or None if the task has none.

        What they saw is in `folder` afterwards. Raises InfrastructureError if one does not start or dies, ServiceDied
        where that may be the agent's doing.
        """

    async def grade(
        self, folder: Path, messages: Sequence[Mapping[str, Any]], left: bytes | None, timeout_s: float
    ) -> dict[str, float]:
        """The parts of the verdict, `reward` among them.

        `folder` is what `running` filled, `messages` the conversation (`tasks.transcript`), `left` what test.sh wrote.
        Raises VerifierError if there is no verdict.
        """
