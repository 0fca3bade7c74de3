"""Who a rollout is: `run / epoch / task / sample / try`, readable in one string."""

import re
from dataclasses import dataclass
from dataclasses import replace

from proxy_addons.errors import ConfigError

# Lower case, digits and dashes: the id is also a file name, a URL segment and a Kubernetes name.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


def check_name(what: str, value: str) -> str:
    """Return `value` if it can be part of a rollout id. Raises ConfigError naming `what` otherwise."""
    if not _NAME.fullmatch(value) or len(value) > 40:
        raise ConfigError(
            f"{what} {value!r}: use at most 40 lower-case letters, digits and dashes, and no dash at either end"
        )
    return value


@dataclass(frozen=True, order=True)
class Rollout:
    """One try at one task. A rollout = one sandbox = one key = one `calls` file."""

    run: str
    epoch: int
    task: str
    sample: int
    try_: int = 0

    def __post_init__(self) -> None:
        check_name("run", self.run)
        check_name("task", self.task)

    @property
    def id(self) -> str:
        return f"{self.slot}-t{self.try_}"

    @property
    def slot(self) -> str:
        """The place in the group that this try fills; tries at one slot replace each other."""
        return f"{self.run}-e{self.epoch:03}-{self.task}-s{self.sample:02}"

    def next_try(self) -> "Rollout":
        return replace(self, try_=self.try_ + 1)
