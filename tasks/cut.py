"""A rollout that our side cut, and what the next try needs to go on with it (`continue_cut`).

That is the workspace as it lay there, the harness's sessions, and the calls that the proxy kept. What was only in the
sandbox, /tmp and running programs, is gone, and the harness tells the policy which call of a tool was cut.
"""

import shutil
import stat
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy_addons.identity import Rollout

WRITTEN_S = 1.0
"""How long a harness keeps its sandbox when the engine failed: Claude Code writes its session down a while later."""
_MAX_SESSION_BYTES = 256 << 20


@dataclass(frozen=True)
class Cut:
    """What the try `rollout` left: `workspace` and `home` in `folder`. Its harness ran for `used_s` seconds and had
    `answered` calls answered, with what it went on with itself; `cuts` says how many calls had been made at each cut,
    this one the last."""

    rollout: Rollout
    folder: Path
    used_s: float
    answered: int
    cuts: tuple[int, ...]

    @property
    def calls(self) -> int:
        return self.cuts[-1]


def missing_calls(calls: Sequence[Mapping[str, Any]], cut: Cut) -> bool:
    """Whether the harness went on from before the last call that was answered before a cut: its session lacked what
    it had done since, and the policy was asked about a workspace that it could not know. `calls` have `call`,
    `parent_call`, `status` and `findings`."""
    turns = [
        call
        for call in calls
        if call["status"] == "ok" and not any(finding.startswith("side_call:") for finding in call["findings"])
    ]
    ends = [sum(call["call"] < calls for call in turns) for calls in cut.cuts]
    return any(turns[n]["parent_call"] != turns[n - 1]["call"] for n in ends if 0 < n < len(turns))


def carry_sessions(pattern: str, home: Path, to: Path) -> bool:
    """Copy the session files that `pattern` finds in `home` to the new home; whether there is any.

    An agent may have left anything in its home: nothing is followed out of it, and nothing else is taken along.
    """
    found = False
    for file in home.glob(pattern):
        status = file.lstat()
        # A link is not resolved: one to itself cannot be.
        if not stat.S_ISREG(status.st_mode) or file.resolve() != home.resolve() / file.relative_to(home):
            continue
        if status.st_size <= _MAX_SESSION_BYTES:
            target = to / file.relative_to(home)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
            found = True
    return found
