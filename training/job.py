"""What a training process is told (JOB.json): free of torch, so that the flow can write it."""

from typing import Literal

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field

from training.rows import SIDE_CALLS

Advantage = Literal["grpo", "dr_grpo", "rloo", "grpo_passk"]
Loss = Literal["ppo", "gspo", "cispo"]
Weighting = Literal["token", "row", "rollout"]

BEST = "best.json"
"""In the folder of checkpoints: names the one to keep beside the newest. Who measures them writes it."""

EXIT_CODES = {"ConfigError": 2, "InfrastructureError": 3}
"""Exit code of a training process by failure class; 0 is success, anything else a crash (infrastructure)."""


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TrainSettings(_Frozen):
    """Hyper-parameters of an update, and how it may use the machine."""

    learning_rate: float = Field(default=3e-4, gt=0)
    """AdamW, constant. A resumed job uses its own, not the checkpoint's."""
    weight_decay: float = Field(default=0.0, ge=0)
    mini_batches: int = Field(default=1, ge=1)
    """Optimizer steps per pass over the rows; fewer if there are fewer prompt groups."""
    ppo_epochs: int = Field(default=1, ge=1)
    """Passes over the rows."""
    negative_weight: float = Field(default=1.0, ge=0, le=1)
    """Factor on advantages below 0; 1 is GRPO (see `advantages`)."""
    advantage: Advantage = "grpo"
    """How a rollout is compared with its group (see `advantages`)."""
    loss: Loss = "ppo"
    weighting: Weighting = "token"
    """What weighs alike in a step's loss (see `losses`)."""
    clip_ratio: float = Field(default=0.2, gt=0, lt=1)
    clip_ratio_high: float | None = Field(default=None, gt=0)
    """Clip of ratios above 1, if it is not `clip_ratio` ("clip-higher")."""
    clip_grad: float = Field(default=1.0, gt=0)
    max_row_tokens: int = Field(default=16_384, ge=2)
    """A longer row is refused and counted."""
    max_staleness: int = Field(default=1, ge=0)
    """A row whose oldest token was sampled more versions of the weights ago than this is refused."""
    leave_out: tuple[str, ...] = SIDE_CALLS
    """Findings whose calls are not trained, and counted; add `compaction_request` to leave out summaries too."""
    micro_batch_tokens: int = Field(default=2048, ge=2)
    """Tokens per forward pass; a longer row passes alone."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the forward pass computes in and the exported folder holds; master weights are always float32."""
    gradient_checkpointing: bool = False
    keep_checkpoints: int = Field(default=2, ge=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(default=2, ge=1)
    """CPU threads. A resumed run is bit-identical only with the same number."""


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
