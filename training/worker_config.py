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
from training.verl_options import fsdp_options
from training.verl_options import model_options
from training.verl_options import optimizer_options

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
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(**model_options(model_dir, settings)),
        engine_config=FSDPEngineConfig(**fsdp_options(settings)),
        optimizer_config=FSDPOptimizerConfig(
            lr_scheduler_type=schedule,
            lr_warmup_steps=warmup_steps,
            total_training_steps=total_steps,
            **optimizer_options(settings),
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
        fsdp_config=FSDPEngineConfig(**fsdp_options(settings)),
        **actor_options(settings),
    )
