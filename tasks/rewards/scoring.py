"""How the parts of a verdict become one reward, as a task's `task.toml` says under `[metadata.reward]`:

    outcome = "reward"                      # what decides: reward (the default), tests, exact, math or rubric
    weights = { reward = 0.9, style = 0.1 } # without weights the outcome is the reward
    gate = 1.0                              # below it the reward is 0; 0 turns the gate off

    reward = sum(weight_i * part_i) / sum(weight_i)     where outcome >= gate, else 0

The gate is why shaping cannot be learned alone: where all attempts fail, all rewards are the same 0 and the group is
dropped (case O53). Without it their small differences would be scaled up to full advantages. A part that is missing is
no 0: it is no verdict (case O52).
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from typing import Literal

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import ValidationError
from pydantic import model_validator

from proxy_addons.errors import ConfigError
from proxy_addons.errors import VerifierError


class Scoring(BaseModel):
    """A task's rule. `answer` is the workspace's file that `exact` and `math` compare with `tests/expected.txt`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    outcome: Literal["reward", "tests", "exact", "math", "rubric"] = "reward"
    weights: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    gate: float = Field(default=1.0, ge=0, le=1)
    answer: str = "answer.txt"

    @model_validator(mode="after")
    def _check(self) -> "Scoring":
        if Path(self.answer).is_absolute() or ".." in Path(self.answer).parts:
            raise ValueError("answer must be a path in the workspace")
        if self.weights and self.outcome in ("exact", "math", "rubric"):
            raise ValueError(f"weights are for what test.sh gives, and outcome {self.outcome} does not run it")
        return self

    @property
    def wants_tests(self) -> bool:
        """Whether a report of single tests is needed."""
        return self.outcome == "tests" or "tests" in self.weights

    @property
    def wants_judge(self) -> bool:
        """Whether a model has to judge by the task's rubric (`rewards.rubric`)."""
        return self.outcome == "rubric" or "rubric" in self.weights


def read_scoring(task_folder: Path) -> Scoring:
    """The rule of a task folder; the default one where it says nothing. Raises ConfigError, one line per problem."""
    file = task_folder / "task.toml"
    try:
        data = tomllib.loads(file.read_text()) if file.is_file() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"task.toml cannot be read: {error}") from None
    metadata = data.get("metadata", {})
    try:
        return Scoring.model_validate(metadata.get("reward", {}) if isinstance(metadata, dict) else {})
    except ValidationError as error:
        lines = (f"task.toml: {'.'.join(['metadata.reward', *map(str, e['loc'])])}: {e['msg']}" for e in error.errors())
        raise ConfigError("\n".join(lines)) from None


def compose(scoring: Scoring, parts: Mapping[str, float]) -> float:
    """One reward in 0..1 of named parts. Raises VerifierError if a part that counts is missing or outside 0..1; below
    the gate only the outcome counts."""
    weights = scoring.weights or {scoring.outcome: 1.0}
    if scoring.weights and _part(parts, scoring.outcome) < scoring.gate:
        return 0.0
    return sum(weight * _part(parts, name) for name, weight in weights.items()) / sum(weights.values())


def _part(parts: Mapping[str, float], name: str) -> float:
    if name not in parts:
        raise VerifierError(f"{name} counts in this task's reward, and the verifier gave none")
    if not 0 <= parts[name] <= 1:
        raise VerifierError(f"{name} is {parts[name]}, not a number from 0 to 1, and counts in this task's reward")
    return parts[name]
