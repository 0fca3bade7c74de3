"""The judge that a benchmark's own grader asks: the run's (`judge` in its configuration), as with a rubric."""

import os

from proxy_addons.errors import ConfigError
from tasks.adapters import Need
from tasks.provider import Provider

MISSING = "name a model in the run's configuration: judge"


def need(name: str = "") -> Need:
    """A judge, as something that a task needs. `tasks.adapters.load` knows whether the run has one."""
    return Need("judge", name, MISSING)


def check(judge: Provider) -> None:
    """Raises ConfigError if a grader that asks by itself cannot ask `judge`, or not within its limit."""
    if judge.api != "openai":
        raise ConfigError(f"judge: the benchmark's own grader asks it, by the API openai and not {judge.api}")
    if judge.max_usd is not None:
        raise ConfigError("judge: max_usd cannot be kept where the benchmark's own grader asks; leave it out")


def endpoint(judge: Provider) -> dict[str, str | float]:
    """What the grader's process needs to ask `judge`. It holds the key: for its standard input only."""
    key = os.environ.get(judge.key_env, "") if judge.key_env else ""
    return {"url": judge.base_url, "model": judge.model, "key": key, "timeout_s": judge.timeout_s}
