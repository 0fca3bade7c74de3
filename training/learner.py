"""One policy being trained: veRL's `TrainingWorker` (FSDP2 engine) in this process, fed with rows.

The recorded log-probabilities are the old policy of the PPO ratio; they are not recomputed. How well the trainer
agrees with what was recorded is measured for free on the forward passes of the first optimizer step, whose weights are
still those that were loaded.

Import this module after `cpu_platform.select_device`: veRL fixes its device when it is imported.
"""

import contextlib
import math
import random
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from typing import Literal

import numpy as np
import torch
from tensordict import TensorDict
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils
from verl.workers.config import FSDPActorConfig
from verl.workers.config import FSDPEngineConfig
from verl.workers.config import FSDPOptimizerConfig
from verl.workers.config import HFModelConfig
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.losses import sft_loss
from verl.workers.utils.padding import no_padding_2_padding

from training.batch import rl_batch
from training.batch import sft_batch
from training.job import TrainSettings
from training.losses import actor_options
from training.rows import Row

Schedule = Literal["constant", "cosine"]


_SCHEDULES: dict[Schedule, dict[str, Any]] = {
    # An update goes on where the one before stopped: no warm-up.
    "constant": {},
    # A fit in a few hundred steps: ease in, forget fast, and do not end at a rate of 0.
    "cosine": {"min_lr_ratio": 0.1, "betas": (0.9, 0.95)},
}


def seed_everything(seed: int, step: int) -> None:
    """Seed python, numpy and torch for one step, so that a step's randomness does not depend on what ran before."""
    value = int(np.random.SeedSequence([seed, step]).generate_state(1)[0])
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)


class Learner:
    """The weights in `model_dir` (a Hugging Face folder) with an optimizer.

    `schedule` "cosine" rises for `warmup_steps` optimizer steps and falls until `total_steps`.
    """

    def __init__(
        self,
        model_dir: Path,
        settings: TrainSettings,
        *,
        schedule: Schedule = "constant",
        warmup_steps: int = 0,
        total_steps: int = 1,
    ) -> None:
        self.settings = settings
        torch.set_num_threads(settings.threads)
        engine = FSDPEngineConfig(
            strategy="fsdp2",
            model_dtype="fp32",
            mixed_precision={"param_dtype": settings.dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
            use_torch_compile=False,
            use_dynamic_bsz=True,
        )
        self._actor = FSDPActorConfig(
            strategy="fsdp2",
            rollout_n=1,
            use_dynamic_bsz=True,
            fsdp_config=engine,
            **actor_options(settings),
        )
        config = TrainingWorkerConfig(
            model_type="language_model",
            model_config=HFModelConfig(
                path=str(model_dir),
                load_tokenizer=False,
                use_remove_padding=True,
                enable_gradient_checkpointing=settings.gradient_checkpointing,
                override_config={"attn_implementation": "sdpa"},
            ),
            engine_config=engine,
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
        with _quiet():
            self._worker = TrainingWorker(config)
            self._worker.reset()

    def log_probs(self, rows: Sequence[Row]) -> list[list[float]]:
        """The policy's log-probability of each row's tokens, given those before and at the row's temperature; the
        first token of a row has none and gets 0.0."""
        batch = self._sized(sft_batch(rows), rows)
        tensordict_utils.assign_non_tensor(batch, compute_loss=False)
        scored = tensordict_utils.get(self._worker.infer_batch(batch), "log_probs")
        # veRL's entry i is about token i + 1.
        return [[0.0, *values[:-1].tolist()] for values in scored.unbind()]

    def update(self, rows: Sequence[Row], advantages: Mapping[str, float], seed: int, step: int) -> dict[str, Any]:
        """One PPO update on `rows` (not empty) with one advantage per rollout; seeded by (seed, step).

        The prompt groups are shuffled and dealt into `mini_batches` parts; each part is one optimizer step (its loss:
        `losses`). Returns numbers over all optimizer steps, weighted by tokens, except
        `grad_norm`, the largest before clipping, and `logprob_agreement`: mean and largest |trainer - recorded|
        log-probability over the first step's tokens. veRL refuses a step whose gradient is not finite and leaves the
        weights alone; `refused_steps` counts those.
        """
        seed_everything(seed, step)
        order = random.Random(f"{seed}/{step}")
        self._worker.set_loss_fn(self._ppo)
        steps = [
            self._optimize(self._sized(rl_batch(part, advantages, self.settings.weighting), part))
            for _ in range(self.settings.ppo_epochs)
            for part in _mini_batches(rows, self.settings.mini_batches, order)
        ]
        self._worker.engine.lr_scheduler_step()
        first, tokens = steps[0], sum(s["tokens"] for s in steps)
        norms = [s["grad_norm"] for s in steps if math.isfinite(s["grad_norm"])]
        return {
            "optimizer_steps": len(steps),
            "refused_steps": len(steps) - len(norms),
            "pg_loss": sum(s["loss"] * s["tokens"] for s in steps) / tokens,
            "grad_norm": max(norms, default=None),
            "ppo_kl": sum(s["kl"] for s in steps) / tokens,
            "clip_fraction": sum(s["clipped"] for s in steps) / tokens,
            "entropy_estimate": sum(s["surprise"] for s in steps) / tokens,
            "logprob_agreement": {
                "mean": first["disagreement"] / first["tokens"],
                "max": first["worst"],
                "tokens": int(first["tokens"]),
            },
        }

    def imitate(self, rows: Sequence[Row]) -> dict[str, float]:
        """One optimizer step of cross entropy on the rows' trained tokens; `loss` is its mean per token (nats), as
        `weighting` weighs them."""
        self._worker.set_loss_fn(_cross_entropy)
        numbers = self._optimize(self._sized(sft_batch(rows, self.settings.weighting), rows))
        self._worker.engine.lr_scheduler_step()
        return numbers

    def save(self, folder: Path) -> None:
        """Write weights, optimizer, scheduler and random state into `folder` (see `training.checkpoint`)."""
        with _quiet():
            self._worker.save_checkpoint(str(folder))

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote. The learning rate stays this learner's own."""
        with _quiet():
            self._worker.load_checkpoint(str(folder))
        engine: Any = self._worker.engine
        for group in engine.optimizer.param_groups:
            group["lr"] = group["initial_lr"] = self.settings.learning_rate
        engine.lr_scheduler.base_lrs = [self.settings.learning_rate] * len(engine.optimizer.param_groups)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The float32 weights on the CPU, under their Hugging Face names."""
        tensors, _ = self._worker.engine.get_per_tensor_param()
        return {name: tensor.detach().cpu() for name, tensor in tensors}

    def _sized(self, batch: TensorDict, rows: Sequence[Row]) -> TensorDict:
        longest = max(len(row.ids) for row in rows)
        tensordict_utils.assign_non_tensor(
            batch,
            max_token_len_per_gpu=max(longest, self.settings.micro_batch_tokens),
            global_batch_size=len(rows),
        )
        return batch

    def _optimize(self, batch: TensorDict) -> dict[str, float]:
        """One optimizer step: its loss, its gradient norm before clipping, and the sums that the loss reported."""
        with _quiet():
            found = tensordict_utils.get(self._worker.train_batch(batch), "metrics")
        numbers = {
            key: _flat(found[key])
            for key in ("tokens", "kl", "clipped", "surprise", "disagreement", "worst")
            if key in found
        }
        return {
            "loss": float(found["loss"]),
            "grad_norm": float(found["grad_norm"]),
            **{key: max(values) if key == "worst" else sum(values) for key, values in numbers.items()},
        }

    def _ppo(self, model_output: Any, data: TensorDict, dp_group: Any = None) -> tuple[torch.Tensor, dict[str, Any]]:
        """veRL's PPO loss of a micro-batch, with sums that can be added up exactly over micro-batches."""
        loss, found = ppo_loss(self._actor, model_output, data, dp_group)
        mask = data["response_mask"].values().bool()
        with torch.no_grad():
            padded = no_padding_2_padding(model_output["log_probs"], data)
            lengths = data["responses"].offsets().diff()
            new = torch.cat([row[:n] for row, n in zip(padded, lengths, strict=True)])[mask]
            gap = new - data["old_log_probs"].values()[mask]
        return loss, {
            "tokens": float(mask.sum()),
            "kl": -float(gap.sum()),
            "clipped": float(found["actor/pg_clipfrac"].aggregate()) * float(mask.sum()),
            "surprise": -float(new.sum()),
            "disagreement": float(gap.abs().sum()),
            "worst": float(gap.abs().max()),
        }


def _cross_entropy(model_output: Any, data: TensorDict, dp_group: Any = None) -> tuple[torch.Tensor, dict[str, Any]]:
    loss, _ = sft_loss(None, model_output, data, dp_group)  # type: ignore[arg-type]  # it reads no configuration
    return loss, {"tokens": float(data["loss_mask"].sum())}


def _mini_batches(rows: Sequence[Row], count: int, order: random.Random) -> Iterator[list[Row]]:
    """The rows in at most `count` parts of whole prompt groups, dealt in a random order: never an empty part."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    names = sorted(groups)
    order.shuffle(names)
    for first in range(min(count, len(names))):
        yield [row for name in names[first::count] for row in groups[name]]


def _flat(values: Any) -> list[float]:
    """veRL collects a metric as a list over ranks of lists over micro-batches."""
    return list(chain.from_iterable(values))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what veRL prints off stdout."""
    with open("/dev/null", "w") as sink, contextlib.redirect_stdout(sink):
        yield
