"""The configuration of a curation: who proposes, what is kept, and the policy that tries the tasks."""

from typing import Any
from typing import Literal

from pydantic import ConfigDict
from pydantic import Field
from pydantic import model_validator

from flows.config import RolloutConfig
from flows.config import load
from tasks.curate.families import FAMILIES
from tasks.provider import Provider

MAX_NAME = 36
"""Characters of a run's name: a probe's is longer by -p00, and at most 40 fit into a rollout's id."""


class CurateConfig(RolloutConfig):
    """One curation. What it shares with training is about the probe: the policy, its harnesses, their limits."""

    model_config = ConfigDict(hide_input_in_errors=True)

    tasks: Literal["proposed"] = Field(default="proposed", description="not to be set: the tasks are what is proposed")

    proposer: Literal["templates", "model"] = Field(
        default="templates", description="templates: built-in families, no model needed; model: ask the endpoint"
    )
    families: list[str] = Field(default=[], description="the template families to draw from; empty: all")
    endpoint: Provider | None = Field(default=None, description="where the model is that proposes")
    proposals: int = Field(default=400, ge=1, le=9999, description="tasks proposed in the first round")
    heldout_share: float = Field(default=0.1, ge=0, lt=1, description="share of the proposals for the held-out split")

    max_instruction_chars: int = Field(default=1000, ge=20, description="a longer instruction is dropped")
    max_task_kb: int = Field(default=1024, ge=1, description="a larger task folder is dropped, KiB")
    likeness: float = Field(
        default=0.8, gt=0, le=1, description="share of common text from which on two tasks are the same one"
    )
    evaluation_sets: list[str] = Field(
        default=["builtin"],
        description="no task may read like one of these: builtin (its held-out tasks), folders, NAME:FOLDER",
    )
    canary_repeats: int = Field(default=2, ge=2, le=100, description="times each verifier must say the same")

    probe_attempts: int = Field(
        default=0, ge=0, le=1024, description="attempts of the policy at each task in each harness; 0: no probe"
    )
    min_pass_rate: float = Field(default=0.0, ge=0, lt=1, description="tasks solved this often or less are too hard")
    max_pass_rate: float = Field(default=1.0, gt=0, le=1, description="tasks solved this often or more are too easy")
    too_hard_share: float = Field(
        default=0.1, ge=0, lt=1, description="share of the kept tasks that may be too hard for the policy"
    )
    refine_rounds: int = Field(
        default=0, ge=0, le=20, description="rounds of variants of what was too easy or too hard; needs a probe"
    )

    @model_validator(mode="after")
    def _possible(self) -> "CurateConfig":
        problems = []
        if self.profile != "local":
            problems.append(
                f"profile: {self.profile} is refused: tasks are built and checked in local sandboxes; use local"
            )
        if self.run and len(self.run) > MAX_NAME:
            problems.append(f"run: {self.run!r} is refused: use at most {MAX_NAME} characters, for its probes' names")
        if unknown := set(self.families) - FAMILIES.keys():
            problems.append(f"families: there is no {min(unknown)}; use some of {', '.join(sorted(FAMILIES))}")
        if self.proposer == "model" and self.families:
            problems.append("families: they are of the proposer templates; leave them out with proposer: model")
        if self.proposer == "model" and self.endpoint is None:
            problems.append("endpoint: it is missing, and proposer model asks there; give api, base_url and model")
        if self.proposer != "model" and self.endpoint is not None:
            problems.append("endpoint: it is refused with proposer templates, which asks nobody; use proposer: model")
        if self.refine_rounds and not self.probe_attempts:
            problems.append("refine_rounds: refinement starts from a probe; set probe_attempts, 4 for instance")
        if self.min_pass_rate >= self.max_pass_rate:
            problems.append(f"min_pass_rate: {self.min_pass_rate:g} is refused: must be below max_pass_rate")
        if problems:
            raise ValueError("\n".join(problems))
        return self


def load_curate_config(config: dict[str, Any] | CurateConfig | None = None) -> CurateConfig:
    """A curation's whole configuration. Raises ConfigError; see `config.load`."""
    return load(CurateConfig, config)
