"""Our settings → veRL's configuration of a training worker (FSDP2) and of its loss.

Import this module after `cpu_platform.select_device`: veRL fixes its device when it is imported.
"""

from pathlib import Path
from typing import Any
from typing import Literal

from verl.trainer.config import CheckpointConfig
from verl.workers.config import FSDPActorConfig
from verl.workers.config import FSDPEngineConfig
from verl.workers.config import FSDPOptimizerConfig
from verl.workers.config import HFModelConfig
from verl.workers.config import TrainingWorkerConfig

from training.job import TrainSettings
from training.losses import actor_options

Schedule = Literal["constant", "cosine"]


_SCHEDULES: dict[Schedule, dict[str, Any]] = {
    # An update goes on where the one before stopped: no warm-up.
    "constant": {},
    # A fit in a few hundred steps: ease in, forget fast, and do not end at a rate of 0.
    "cosine": {"min_lr_ratio": 0.1, "betas": (0.9, 0.95)},
}


def worker_config(
    model_dir: Path, settings: TrainSettings, schedule: Schedule, warmup_steps: int, total_steps: int
) -> TrainingWorkerConfig:
    """A worker that trains the model in `model_dir`, all of it or an adapter."""
    rank, alpha = settings.lora
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(
            path=str(model_dir),
            load_tokenizer=False,
            use_remove_padding=True,
            enable_gradient_checkpointing=settings.gradient_checkpointing,
            override_config={"attn_implementation": "sdpa"},
            lora_rank=rank,
            lora_alpha=alpha,
        ),
        engine_config=_engine(settings),
        optimizer_config=FSDPOptimizerConfig(
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            clip_grad=settings.clip_grad,
            lr_scheduler_type=schedule,
            lr_warmup_steps=warmup_steps,
            total_training_steps=total_steps,
            **_SCHEDULES[schedule],
        ),
        checkpoint_config=CheckpointConfig(),
    )


def actor_config(settings: TrainSettings) -> FSDPActorConfig:
    """What the policy loss reads."""
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        use_dynamic_bsz=True,
        fsdp_config=_engine(settings),
        **actor_options(settings),
    )


def _engine(settings: TrainSettings) -> FSDPEngineConfig:
    return FSDPEngineConfig(
        strategy="fsdp2",
        model_dtype="fp32",
        mixed_precision={"param_dtype": settings.dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        use_torch_compile=False,
        use_dynamic_bsz=True,
    )
