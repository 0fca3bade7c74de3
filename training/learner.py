"""One policy being trained: veRL's `TrainingWorker` (FSDP2 engine) in this process, fed with rows.

The recorded log-probabilities are the old policy of the PPO ratio, unless the settings have the trainer recompute them
(`off_policy`). How well the trainer agrees with what was recorded is measured for free on the forward passes of the
first optimizer step, whose weights are still those that were loaded.

Under `torchrun` each rank has one Learner, calls its methods with the same arguments, and trains its share of a step.

Import this module after `cpu_platform.select_device`: veRL fixes its device when it is imported.
"""

import contextlib
import random
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tensordict import TensorDict
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict import set_state_dict
from verl.utils import tensordict_utils
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.losses import sft_loss
from verl.workers.utils.padding import no_padding_2_padding

from proxy_addons.errors import ConfigError
from training.batch import rl_batch
from training.batch import sft_batch
from training.batch import share
from training.batch import steps_of
from training.job import TrainSettings
from training.lora import merged
from training.numbers import SUMS
from training.numbers import step_numbers
from training.numbers import summary
from training.off_policy import settled
from training.reference import reference_folder
from training.rows import Row
from training.vision import vision_of
from training.worker_config import Schedule
from training.worker_config import actor_config
from training.worker_config import worker_config


def seed_everything(seed: int, step: int) -> None:
    """Seed python, numpy and torch for one step, so that a step's randomness does not depend on what ran before."""
    value = int(np.random.SeedSequence([seed, step]).generate_state(1)[0])
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)


class Learner:
    """The weights in `model_dir` (a Hugging Face folder) with an optimizer, or with `lora_rank` those weights frozen
    and an adapter with an optimizer. The adapter begins as nothing; `seed` draws the half of it that is not 0.

    `schedule` "cosine" rises for `warmup_steps` optimizer steps and falls until `total_steps`. `worker` is one that
    stands already (`training.recorded`), instead of one that is made.
    """

    def __init__(
        self,
        model_dir: Path,
        settings: TrainSettings,
        *,
        seed: int = 0,
        schedule: Schedule = "constant",
        warmup_steps: int = 0,
        total_steps: int = 1,
        worker: TrainingWorker | None = None,
    ) -> None:
        self.settings = settings
        self._model_dir = model_dir
        self._vision = vision_of(model_dir)
        torch.set_num_threads(settings.threads)
        self._actor = actor_config(settings)
        if worker is not None:
            self._worker = worker
            return
        if settings.lora_rank:
            seed_everything(seed, 0)
        config = worker_config(model_dir, settings, schedule, warmup_steps, total_steps)
        with _quiet():
            self._worker = TrainingWorker(config)
            self._worker.reset()

    def log_probs(self, rows: Sequence[Row]) -> list[list[float]]:
        """The policy's log-probability of each row's trained tokens, given those before and at the row's temperature;
        others get 0.0."""
        return self._scored(rows)

    def _scored(self, rows: Sequence[Row], **how: bool) -> list[list[float]]:
        batch = self._sized(sft_batch(rows, vision=self._vision), rows)
        tensordict_utils.assign_non_tensor(batch, compute_loss=False, **how)
        scored = tensordict_utils.get(self._worker.infer_batch(batch), "log_probs")
        # veRL's entry i is about token i + 1.
        return [[0.0, *values[:-1].tolist()] for values in scored.unbind()]

    def update(self, rows: Sequence[Row], advantages: Mapping[str, float], seed: int, step: int) -> dict[str, Any]:
        """One PPO update on `rows` (not empty) with one advantage per rollout; seeded by (seed, step).

        The prompt groups are shuffled and dealt into `mini_batches` parts; each part is one optimizer step (its loss:
        `losses`). Returns numbers over all optimizer steps, weighted by tokens, except
        `grad_norm`, the largest before clipping, and `logprob_agreement`: mean and largest |trainer - recorded|
        log-probability over the first step's tokens, or over all where the trainer computes them beforehand. veRL
        refuses a step whose gradient is not finite and leaves the weights alone; `refused_steps` counts those.
        `reference_kl` and `entropy` are there if their terms are, and `off_policy` if rows are scored beforehand
        (`off_policy.correct`); where that rejected every row there is no step, and what is a mean is None.
        """
        seed_everything(seed, step)
        rows, found = self._prepared(rows)
        self._worker.set_loss_fn(self.loss)
        parts = steps_of(rows, self.settings, seed, step)
        steps = [self._optimize(self._batch(part, advantages)) for part in parts]
        self._worker.engine.lr_scheduler_step()
        return summary(steps, self.settings) | found

    def _batch(self, part: Sequence[Row], advantages: Mapping[str, float]) -> TensorDict:
        batch = self._sized(rl_batch(part, advantages, self.settings.weighting, self._vision), part)
        if self.settings.entropy_coef:
            tensordict_utils.assign_non_tensor(batch, calculate_entropy=True)
        return batch

    def _prepared(self, rows: Sequence[Row]) -> tuple[Sequence[Row], dict[str, Any]]:
        """The rows with what the loss needs to know of them before the first step, and what was found out."""
        if self.settings.kl_coef:
            scores = self._reference_log_probs(rows)
            rows = [replace(row, reference=own) for row, own in zip(rows, scores, strict=True)]
        return settled(rows, self.log_probs, self.settings)

    def _reference_log_probs(self, rows: Sequence[Row]) -> list[list[float]]:
        if self.settings.lora_rank and self.settings.reference_model is None:
            # FSDP2 settles in its first pass in which type gradients come. With the adapter off there would be none.
            self._scored([min(rows, key=lambda row: len(row.ids))])
            return self._scored(rows, no_lora_adapter=True)
        return self._reference().log_probs(rows)

    def _reference(self) -> "Learner":
        """The reference model, for as long as it is needed. Raises ConfigError if it cannot be that."""
        folder = reference_folder(self._model_dir, self.settings)
        return Learner(folder, self.settings.model_copy(update={"lora_rank": 0, "lora_alpha": None}))

    def imitate(self, rows: Sequence[Row]) -> dict[str, float]:
        """One optimizer step of cross entropy on the rows' trained tokens; `loss` is its mean per token (nats), as
        `weighting` weighs them."""
        self._worker.set_loss_fn(_cross_entropy)
        numbers = self._optimize(self._sized(sft_batch(rows, self.settings.weighting, self._vision), rows))
        self._worker.engine.lr_scheduler_step()
        return numbers

    def save(self, folder: Path) -> None:
        """Write what is trained, optimizer and scheduler into `folder` (see `training.checkpoint`), each process its
        shards; any number of them may go on from there."""
        dcp.save(self._state(), checkpoint_id=folder)

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote. The learning rate stays this learner's own. Raises ConfigError if it is not."""
        if not (folder / ".metadata").is_file():
            raise ConfigError(f"resume: {folder} is of another version; start a new run with ../hf as the model")
        engine: Any = self._worker.engine
        state = self._state()
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(
            engine.module,
            engine.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=StateDictOptions(strict=not self.settings.lora_rank),  # under an adapter the model is not in it
        )
        engine.lr_scheduler.load_state_dict(state["scheduler"])
        self.keep_rate()

    def keep_rate(self) -> None:
        """Have this learner's own learning rate, whatever a checkpoint says."""
        engine: Any = self._worker.engine
        for group in engine.optimizer.param_groups:
            group["lr"] = group["initial_lr"] = self.settings.learning_rate
        engine.lr_scheduler.base_lrs = [self.settings.learning_rate] * len(engine.optimizer.param_groups)

    def _state(self) -> dict[str, Any]:
        """What changes as this learns, in the tensors themselves."""
        engine: Any = self._worker.engine
        # AdamW has no moments of what had no gradient yet; torch would make some by a step that it counts.
        for parameter in engine.module.parameters():
            if parameter.requires_grad and parameter not in engine.optimizer.state:
                moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                engine.optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}
        options = StateDictOptions(ignore_frozen_params=True)
        model, optimizer = get_state_dict(engine.module, engine.optimizer, options=options)
        return {"model": model, "optimizer": optimizer, "scheduler": engine.lr_scheduler.state_dict()}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The float32 weights on the CPU, under their names in transformers, an adapter merged into them; nothing but
        in the first process."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        engine: Any = self._worker.engine
        weights: Any = get_model_state_dict(engine.module, options=options)
        rank, alpha = self.settings.lora
        return merged(weights, alpha / rank) if rank else weights

    def _sized(self, batch: TensorDict, rows: Sequence[Row]) -> TensorDict:
        longest = max(len(row.ids) for row in rows)
        tensordict_utils.assign_non_tensor(
            batch,
            max_token_len_per_gpu=max(longest, self.settings.micro_batch_tokens),
            global_batch_size=len(rows),
        )
        return batch

    def _optimize(self, batch: TensorDict) -> dict[str, float]:
        """One optimizer step; see `numbers.step_numbers`."""
        batch = share(batch, dist.get_rank(), dist.get_world_size())
        with _quiet():
            found = tensordict_utils.get(self._worker.train_batch(batch), "metrics")
        numbers = {key: _flat(found[key]) for key in SUMS if key in found}
        sums = {key: max(values) if key == "max_gap" else sum(values) for key, values in numbers.items()}
        return step_numbers(sums, float(found["loss"]), float(found["grad_norm"]), self.settings)

    def loss(self, model_output: Any, data: TensorDict, dp_group: Any = None) -> tuple[torch.Tensor, dict[str, Any]]:
        """veRL's PPO loss of a micro-batch, with sums that can be added up exactly over micro-batches."""
        loss, found = ppo_loss(self._actor, model_output, data, dp_group)
        mask = data["response_mask"].values().bool()
        with torch.no_grad():
            padded = no_padding_2_padding(model_output["log_probs"], data)
            lengths = data["responses"].offsets().diff()
            new = torch.cat([row[:n] for row, n in zip(padded, lengths, strict=True)])[mask]
            gap = new - data["old_log_probs"].values()[mask]
        # veRL's terms are shares of the mean over the tokens of all ranks.
        whole = data["batch_num_tokens"] / data["dp_size"]
        names = {"kl_loss": "reference_kl", "actor/entropy_loss": "entropy"}
        return loss, {
            "tokens": float(mask.sum()),
            "kl": -float(gap.sum()),
            "clipped": float(found["actor/pg_clipfrac"].aggregate()) * float(mask.sum()),
            "surprise": -float(new.sum()),
            "disagreement": float(gap.abs().sum()),
            "max_gap": float(gap.abs().max()) if gap.numel() else 0.0,
            **{ours: float(found[its].aggregate()) * whole for its, ours in names.items() if its in found},
        }


def _cross_entropy(model_output: Any, data: TensorDict, dp_group: Any = None) -> tuple[torch.Tensor, dict[str, Any]]:
    loss, _ = sft_loss(None, model_output, data, dp_group)  # type: ignore[arg-type]  # it reads no configuration
    return loss, {"tokens": float(data["loss_mask"].sum())}


def _flat(values: Any) -> list[float]:
    """veRL collects a metric as a list over ranks of lists over micro-batches."""
    return list(chain.from_iterable(values))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what veRL prints off stdout."""
    with open("/dev/null", "w") as sink, contextlib.redirect_stdout(sink):
        yield
