"""The configuration of an evaluation: what it shares with training, and what is measured."""

from typing import Any
from typing import Literal

from pydantic import Field
from pydantic import model_validator

from flows.config import Part
from flows.config import RolloutConfig
from flows.config import load
from tasks.provider import Provider


class PricesConfig(Part):
    """What tokens cost, in USD per million."""

    prompt: float = Field(ge=0, description="USD per million prompt tokens")
    sampled: float = Field(ge=0, description="USD per million sampled tokens")


class EvaluateConfig(RolloutConfig):
    """One evaluation: a policy in each harness, on each task, some attempts."""

    policy: Literal["model", "provider", "perfect", "random"] = Field(
        default="model",
        description="model: what the policy server samples; provider: a model behind an API, with the tokenizer of "
        "`model`; perfect, random: scripts for the built-in tasks",
    )
    provider: Provider | None = Field(default=None, description="who answers if policy is provider")
    split: Literal["heldout", "train", "all"] = Field(default="heldout", description="which tasks of the set")
    task_count: int | None = Field(
        default=None, ge=1, description="tasks, the same ones every time; empty: all of the split"
    )
    k: int = Field(default=4, ge=1, le=1024, description="the k of pass@k and pass^k")
    attempts: int | None = Field(
        default=None, ge=1, le=1024, description="attempts at each task in each harness, at least k; empty: k"
    )
    prices: PricesConfig | None = Field(default=None, description="what tokens cost; empty: cost is not told")
    compare: str | None = Field(
        default=None, min_length=1, description="another evaluation, its run or folder, to compare with task by task"
    )

    @property
    def wanted(self) -> int:
        """Attempts at each task in each harness."""
        return self.attempts or self.k

    @model_validator(mode="after")
    def _possible(self) -> "EvaluateConfig":
        if self.wanted < self.k:
            raise ValueError(f"attempts: {self.attempts} is refused: pass@k needs at least k ({self.k})")
        if (self.policy == "provider") != (self.provider is not None):
            raise ValueError("provider: give base_url, model and key_env with policy provider, and only then")
        if self.policy in ("perfect", "random") and self.tasks != "builtin":
            raise ValueError(f"policy: {self.policy} is a script for the built-in tasks; use it with tasks: builtin")
        return self


def load_evaluate_config(config: dict[str, Any] | EvaluateConfig | None = None) -> EvaluateConfig:
    """An evaluation's whole configuration. Raises ConfigError; see `config.load`."""
    return load(EvaluateConfig, config)
