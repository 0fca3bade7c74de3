"""The configuration of a supervised fit on a teacher's rollouts."""

from typing import Any
from typing import Literal

from pydantic import Field
from pydantic import model_validator

from flows.config import Part
from flows.config import RolloutConfig
from flows.config import load
from tasks.provider import Provider
from training.job import Weighting


class FitConfig(Part):
    """The fit: cross entropy on what the teacher said, by veRL's engine."""

    learning_rate: float = Field(default=2e-5, gt=0, le=1, description="AdamW, falling along a cosine")
    passes: int = Field(default=3, ge=1, le=1000, description="passes over the rows")
    batch_rows: int = Field(default=8, ge=1, description="rows per optimizer step")
    weighting: Weighting = Field(default="rollout", description="what weighs alike in a step's loss")
    max_row_tokens: int = Field(default=16_384, ge=16, description="a longer row is refused and counted")
    micro_batch_tokens: int = Field(default=2048, ge=2, description="tokens per forward pass")
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="of the forward pass and the result")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="where to fit")


class SftConfig(RolloutConfig):
    """One supervised fit of `model` on the rollouts of a teacher that succeeded."""

    teacher: Literal["provider", "self", "script"] = Field(
        default="self",
        description="provider: a model behind an API; self: `model` itself (rejection sampling); script: the built-in "
        "tasks' own",
    )
    provider: Provider | None = Field(default=None, description="who teaches if teacher is provider")
    task_count: int | None = Field(
        default=None, ge=1, description="training tasks, the same ones every time; empty: all"
    )
    attempts: int = Field(default=4, ge=1, le=1024, description="teacher rollouts per task and harness")
    min_reward: float = Field(default=1.0, gt=0, le=1, description="a rollout with less is not learned from")
    keep: int = Field(default=2, ge=1, description="most rollouts learned from per task and harness")
    alike: float = Field(
        default=0.9, gt=0, le=0.95, description="of rollouts whose turns are as alike as this (Jaccard) one is kept"
    )
    fit: FitConfig = FitConfig()

    @model_validator(mode="after")
    def _possible(self) -> "SftConfig":
        if (self.teacher == "provider") != (self.provider is not None):
            raise ValueError("provider: give base_url, model and key_env with teacher provider, and only then")
        if self.teacher == "script" and self.tasks != "builtin":
            raise ValueError("teacher: the script knows the built-in tasks only; use it with tasks: builtin")
        return self


def load_sft_config(config: dict[str, Any] | SftConfig | None = None) -> SftConfig:
    """A fit's whole configuration. Raises ConfigError; see `config.load`."""
    return load(SftConfig, config)
