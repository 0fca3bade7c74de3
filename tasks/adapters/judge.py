"""The judge that a benchmark's grader asks: any OpenAI-compatible endpoint, named by three environment variables.

JUDGE_URL=https://host/v1   JUDGE_MODEL=name   JUDGE_KEY=...        # the key may be missing where none is asked for
"""

import os
from dataclasses import dataclass
from dataclasses import field

from tasks.adapters import Need

MISSING = "set JUDGE_URL and JUDGE_MODEL (and JUDGE_KEY) to an OpenAI-compatible endpoint"


@dataclass(frozen=True)
class Judge:
    """Where the judge is. The key is in no log and no record."""

    url: str
    model: str
    key: str = field(default="", repr=False)


def configured() -> Judge | None:
    """The judge of this machine; None if none is named."""
    url, model = os.environ.get("JUDGE_URL", ""), os.environ.get("JUDGE_MODEL", "")
    return Judge(url, model, os.environ.get("JUDGE_KEY", "")) if url and model else None


def need(name: str = "") -> Need:
    """A judge, as something that a task needs."""
    return Need("judge", name, "" if configured() else MISSING)
