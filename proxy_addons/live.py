"""The rollouts that are alive: their keys, what they may use, and what they have used."""

import asyncio
import hmac
from collections import Counter
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from proxy_addons.dialects.memory import Memory
from proxy_addons.identity import Rollout

if TYPE_CHECKING:  # it brings transformers, and a flow, which wants Limits only, has to start without
    from proxy_addons.chain import Trajectory


@dataclass(frozen=True)
class Limits:
    """What one rollout may use. `max_calls` and `max_total_tokens` (sampled ones; None: no limit) count over its whole
    life: as many turns of its agents as `max_calls`, and as many calls besides that are none (`kinds.is_aside`); calls
    under way together may exceed the tokens by what each was given. `max_model_len` is prompt plus reply,
    in tokens. Of more than `max_concurrent` calls at once, the later ones wait."""

    max_calls: int = 64
    max_tokens: int = 1024
    max_model_len: int = 8192
    temperature: float = 1.0
    max_total_tokens: int | None = None
    max_concurrent: int = 16


@dataclass
class LiveRollout:
    """A rollout between its registration and its end. `findings` are those that belong to none of its calls; the hosts
    are what the egress port lets it reach and what it answers in the model's place (see `egress`); `out_of_budget` is
    the finding of the budget that ended it; `used` is how many calls count in the limits, turns (False) and others
    (True)."""

    identity: Rollout
    harness: str
    key: str
    limits: Limits
    ledger: Path
    trajectory: "Trajectory"
    allow_hosts: tuple[str, ...] = ()
    model_hosts: tuple[str, ...] = ()
    findings: set[str] = field(default_factory=set)
    memory: Memory = field(default_factory=Memory)
    calls: int = 0
    used: Counter[bool] = field(default_factory=Counter)
    sampled_tokens: int = 0
    out_of_budget: str | None = None
    failure: "asyncio.Future[str]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    busy: "set[asyncio.Task[object]]" = field(default_factory=set)
    turnstile: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.turnstile = asyncio.Semaphore(self.limits.max_concurrent)

    def fail(self, reason: str) -> None:
        """Note that our side broke under this rollout; the runner stops it and tries again."""
        if not self.failure.done():
            self.failure.set_result(reason)

    @property
    def tokens_left(self) -> int | None:
        """How many tokens may still be sampled; None if there is no limit."""
        limit = self.limits.max_total_tokens
        return None if limit is None else max(limit - self.sampled_tokens, 0)

    def count(self, aside: bool) -> int:
        """Count a call; returns how many of its sort, turns or calls that are none, were before it."""
        before = self.used[aside]
        self.calls += 1
        self.used[aside] += 1
        return before

    def give_back(self, aside: bool) -> None:
        """Let a call that our side failed use up nothing: the next try may go on with this rollout."""
        self.used[aside] -= 1

    def spent(self, before: int) -> tuple[str, str] | None:
        """The finding and the words of the budget that leaves nothing for a call with `before` before it, or None."""
        if before >= self.limits.max_calls:
            return "out_of_calls", f"budget of {self.limits.max_calls} model calls"
        if self.tokens_left == 0:
            return "out_of_tokens", f"budget of {self.limits.max_total_tokens} generated tokens"
        return None


class Live:
    """Every live rollout by id. An unknown id is never an implicit session."""

    def __init__(self) -> None:
        self._rollouts: dict[str, LiveRollout] = {}

    def add(self, rollout: LiveRollout) -> None:
        """Register. Raises ValueError if the id is alive already."""
        if rollout.identity.id in self._rollouts:
            raise ValueError(f"rollout {rollout.identity.id} is already registered")
        self._rollouts[rollout.identity.id] = rollout

    def get(self, rollout_id: str) -> LiveRollout | None:
        """The live rollout, or None."""
        return self._rollouts.get(rollout_id)

    def remove(self, rollout_id: str) -> LiveRollout | None:
        """Take a rollout out; its key is dead from now on."""
        return self._rollouts.pop(rollout_id, None)

    def of_run(self, run: str) -> list[str]:
        """The ids of a run's live rollouts."""
        return [name for name, rollout in self._rollouts.items() if rollout.identity.run == run]

    def __len__(self) -> int:
        return len(self._rollouts)


def key_matches(rollout: LiveRollout, presented: str) -> bool:
    """Whether the presented key is the rollout's, in constant time."""
    return hmac.compare_digest(rollout.key.encode(), presented.encode())
