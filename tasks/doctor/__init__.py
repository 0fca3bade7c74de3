"""Preflight: is everything there that a run needs? One line a check: it is well, or what to do.

    python -m tasks.doctor --profile local
    python -m tasks.doctor --profile kubernetes [--namespace openforge]

Nothing is believed: programs are started, and in a cluster pods with the labels of a rollout try what a rollout must be
able to do, and what it must not.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """What was looked at and found. `ok` None: it could not be looked at, for the reason in `text`."""

    name: str
    ok: bool | None
    text: str

    def line(self) -> str:
        """As the doctor prints it."""
        mark = {True: "ok  ", False: "FAIL", None: "?   "}[self.ok]
        return f"{mark}  {self.name}: {self.text}"
