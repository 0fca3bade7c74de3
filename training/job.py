"""What a training process is told (JOB.json): free of torch, so that the flow can write it."""

import math
from typing import Literal
from typing import Self

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import model_validator

from training.rows import SIDE_CALLS

Advantage = Literal["grpo", "dr_grpo", "rloo", "grpo_passk"]
Loss = Literal["ppo", "gspo", "cispo"]
Weighting = Literal["token", "row", "rollout"]
KlPenalty = Literal["low_var_kl", "kl", "abs", "mse", "low_var_kl+", "kl+", "abs+"]
Rejection = Literal[
    "token_k1",
    "token_k2",
    "token_k3",
    "seq_sum_k1",
    "seq_sum_k2",
    "seq_sum_k3",
    "seq_mean_k1",
    "seq_mean_k2",
    "seq_mean_k3",
    "seq_max_k2",
    "seq_max_k3",
]

BEST = "best.json"
"""In the folder of checkpoints: names the one to keep beside the newest. Who measures them writes it."""

EXIT_CODES = {"ConfigError": 2, "InfrastructureError": 3}
"""Exit code of a training process by failure class; 0 is success, anything else a crash (infrastructure)."""


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Objective(_Frozen):
    """What an update optimises: the settings that a run's configuration and a job share (docs/training.md)."""

    advantage: Advantage = Field(default="grpo", description="how a rollout is compared with its group")
    negative_weight: float = Field(
        default=1.0, ge=0, le=1, description="factor on negative advantages; 1 is GRPO, 0 learns from successes only"
    )
    outcome_gate: float = Field(
        default=0.0, ge=0, description="a rollout whose reward is below it gets no positive advantage; 0: no gate"
    )
    loss: Loss = Field(default="ppo", description="the clipped policy loss: of tokens, of whole rows, or of weights")
    weighting: Weighting = Field(default="token", description="what weighs alike in the loss of an optimizer step")
    clip_ratio: float = Field(default=0.2, gt=0, lt=1, description="PPO clip: the ratio stays within 1 ± this")
    clip_ratio_high: float | None = Field(
        default=None, gt=0, description="clip of ratios above 1, if it is not clip_ratio"
    )
    kl_coef: float = Field(default=0.0, ge=0, description="weight of the KL term to the reference model; 0: none")
    kl_penalty: KlPenalty = Field(default="low_var_kl", description="estimator of that KL, by veRL's name")
    reference_model: str | None = Field(
        default=None, min_length=1, description="Hugging Face folder of the reference model; empty: the run's own model"
    )
    entropy_coef: float = Field(default=0.0, ge=0, description="weight of the entropy bonus; 0: none")
    lora_rank: int = Field(
        default=0, ge=0, description="rank of the LoRA adapter that is trained instead of the weights; 0: none"
    )
    lora_alpha: int | None = Field(
        default=None, ge=1, description="the adapter weighs lora_alpha / lora_rank; empty: twice the rank"
    )
    max_staleness: int = Field(
        default=1, ge=0, description="a row whose oldest token was sampled more versions of the weights ago is refused"
    )
    old_policy: Literal["recorded", "recomputed"] = Field(
        default="recorded", description="the ratio's old policy: as recorded, or the trainer's own before the update"
    )
    rollout_is: Literal["token", "sequence"] | None = Field(
        default=None, description="truncated importance sampling of old over recorded policy; empty: none"
    )
    rollout_is_threshold: float = Field(default=2.0, ge=1, description="largest importance weight")
    rollout_rs: Rejection | None = Field(
        default=None, description="rejection of tokens or rows by trainer over recorded policy; empty: none"
    )
    rollout_rs_threshold: float | None = Field(default=None, gt=0, description="limit of what rollout_rs measures")

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        limit = self.rollout_rs_threshold
        if self.clip_ratio_high is not None and self.clip_ratio_high < self.clip_ratio:
            raise ValueError(
                f"clip_ratio_high {self.clip_ratio_high:g} is below clip_ratio {self.clip_ratio:g}; raise it or leave"
                " it out"
            )
        if self.reference_model is not None and not self.kl_coef:
            raise ValueError("reference_model is read for the KL term only; set kl_coef or leave it out")
        if self.lora_alpha is not None and not self.lora_rank:
            raise ValueError("lora_alpha is the weight of a LoRA adapter; set lora_rank or leave it out")
        if self.rollout_is is not None and self.old_policy == "recorded":
            raise ValueError(
                "rollout_is would correct twice: with old_policy 'recorded' the ratio itself is to the recorded policy;"
                " set old_policy to 'recomputed' or leave rollout_is out"
            )
        if (self.rollout_rs is None) != (limit is None):
            raise ValueError("rollout_rs and rollout_rs_threshold go together; set both or neither")
        if self.rollout_rs is not None and self.rollout_rs.endswith("k1") and limit is not None and limit <= 1:
            raise ValueError(
                f"rollout_rs_threshold {limit:g} with {self.rollout_rs} keeps ratios from 1/{limit:g} to {limit:g};"
                " set it above 1"
            )
        return self

    @property
    def lora(self) -> tuple[int, int]:
        """Rank and alpha of the adapter; both 0 if there is none."""
        return self.lora_rank, self.lora_alpha or 2 * self.lora_rank


class Layout(Objective):
    """An objective, and whose loop works for it on which machines; shared like it."""

    trainer: Literal["direct", "main_ppo"] = Field(
        default="direct", description="veRL's worker in our processes, or veRL's own trainer on Ray"
    )
    nodes: int = Field(default=1, ge=1, description="machines with `processes` each; main_ppo only")
    strategy: Literal["fsdp2", "megatron"] = Field(
        default="fsdp2", description="veRL's engine; megatron needs main_ppo, GPUs and megatron-core"
    )
    tensor_parallel: int = Field(default=1, ge=1, description="GPUs that share each layer; megatron only")
    pipeline_parallel: int = Field(default=1, ge=1, description="GPUs that share the layers; megatron only")
    context_parallel: int = Field(default=1, ge=1, description="GPUs that share a row; megatron only")
    expert_parallel: int = Field(default=1, ge=1, description="GPUs that share a layer's experts; megatron only")
    processes: int = Field(
        default=1, ge=1, le=64, description="processes per machine that share an update, one per GPU"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="of the forward pass and of the served weights; trained ones are float32"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="where to train; auto takes a GPU if there is one"
    )

    @model_validator(mode="after")
    def _layout_is_possible(self) -> Self:
        if self.trainer == "direct":
            for name in ("nodes", "strategy"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"{name} {getattr(self, name)!r} needs veRL's trainer on Ray; set trainer main_ppo"
                    )
        sizes = self.tensor_parallel, self.pipeline_parallel, self.context_parallel
        gpus = self.nodes * self.processes
        if self.strategy == "fsdp2":
            if (*sizes, self.expert_parallel) != (1, 1, 1, 1):
                raise ValueError(
                    "tensor_, pipeline_, context_ and expert_parallel are Megatron's; set strategy megatron"
                )
        elif self.lora_rank or self.dtype != "bfloat16" or self.device == "cpu":
            raise ValueError(
                "strategy megatron trains all weights, in bfloat16, on GPUs: leave lora_rank and device cpu out and set"
                " dtype bfloat16"
            )
        elif gpus % math.prod(sizes) or gpus % (self.expert_parallel * self.pipeline_parallel):
            raise ValueError(
                f"{gpus} GPUs (nodes × processes) do not divide by tensor_, pipeline_ and"
                " context_parallel together, or by expert_ and pipeline_parallel"
            )
        return self

    @property
    def residents(self) -> int:
        """Our own processes of an update; veRL's trainer starts its ranks itself, from one of ours."""
        return self.processes if self.trainer == "direct" else 1


class TrainSettings(Layout):
    """Hyper-parameters of an update, and how it may use the machine."""

    learning_rate: float = Field(default=3e-4, gt=0)
    """AdamW, constant. A resumed job uses its own, not the checkpoint's."""
    weight_decay: float = Field(default=0.0, ge=0)
    mini_batches: int = Field(default=1, ge=1)
    """Optimizer steps per pass over the rows; fewer if there are fewer prompt groups."""
    ppo_epochs: int = Field(default=1, ge=1)
    """Passes over the rows."""
    clip_grad: float = Field(default=1.0, gt=0)
    max_row_tokens: int = Field(default=16_384, ge=2)
    """A longer row is refused and counted."""
    leave_out: tuple[str, ...] = SIDE_CALLS
    """Findings whose calls are not trained, and counted; add `compaction_request` to leave out summaries too."""
    micro_batch_tokens: int = Field(default=2048, ge=2)
    """Tokens per forward pass; a longer row passes alone."""
    gradient_checkpointing: bool = False
    keep_checkpoints: int = Field(default=2, ge=1)
    threads: int = Field(default=2, ge=1)
    """CPU threads. A resumed run is bit-identical only with the same number."""
    served_len: int | None = Field(default=None, ge=2)
    """The trainer (main_ppo) serves the policy too, with contexts of up to so many tokens; null: it does not."""
    served_gpus: int = Field(default=1, ge=1)
    """GPUs that share one replica of the served policy."""

    @property
    def replicas(self) -> int:
        """How many replicas of the policy the trainer serves, where it does."""
        return self.nodes * self.processes // self.served_gpus


class TrainJob(_Frozen):
    """One epoch's update. All paths but `calls` and `rollouts` are local; those two may be any fsspec path."""

    base_model: str
    """Hugging Face folder: architecture and tokenizer; its weights are used if `resume` is null."""
    resume: str | None = None
    """Checkpoint folder to go on from."""
    epoch: int = Field(ge=0)
    seed: int = Field(default=0, ge=0)
    weight_version: int = Field(default=0, ge=0)
    """Version of the weights that this job starts from; rows sampled by older ones are that much stale."""
    rollouts: str
    """Parquet file of `records.ROLLOUTS` rows."""
    calls: tuple[str, ...]
    """Parquet files of `records.CALLS` rows."""
    checkpoint_dir: str
    result: str
    """Where RESULT.json goes."""
    settings: TrainSettings = TrainSettings()


class ServeJob(_Frozen):
    """Serve the policy from the trainer, before its first update and after each."""

    port: int
    """On loopback, where replica N of the policy answers below `/N` (`training.front`)."""
    begins: TrainJob
    """What the trainer begins as. It has no rows."""


class SftSettings(TrainSettings):
    """Settings of a warm start. What only an RL update has (`ppo_epochs`, clipping, staleness) is not read."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """AdamW, falling to 0 along a cosine."""
    opening_steps: int = Field(default=0, ge=0)
    """Optimizer steps on rows without their opening: the tokens (system prompt, tools) that all rows of a harness
    share. A new model learns to look back in a short text long before it does in a long one."""
    steps: int = Field(default=100, ge=1)
    """Optimizer steps on whole rows, after those."""
    passes: int | None = Field(default=None, ge=1)
    """Passes over the whole rows instead of `steps`; the learning rate then rises in a tenth of the steps."""
    batch_rows: int = Field(default=12, ge=1)
    """Rows per optimizer step."""


class SftJob(_Frozen):
    """One warm start, from recorded calls to a Hugging Face folder `out`, which is replaced."""

    base_model: str
    calls: tuple[str, ...]
    out: str
    result: str
    seed: int = Field(default=0, ge=0)
    settings: SftSettings = SftSettings()
