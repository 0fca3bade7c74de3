"""veRL's V1 trainer on recorded rows: what runs inside Ray for `training.main_ppo`.

One global step of veRL is one optimizer step of ours. veRL asks its agent-loop manager to generate a batch; ours
(`RecordedManager`) puts that step's rows into TransferQueue instead, as `batch.rl_batch` makes them. From there veRL
works as ever: it shares the rows among the ranks, takes their log-probabilities as the old policy (bypass mode), scores
the reference, updates the actor, logs, saves. Left out is what the rows have already: rewards to advantages, and what
needs all of an update's rows to be scored before its first step (`off_policy`), which is done by then.

Each process of veRL's imports this module with veRL (VERL_USE_EXTERNAL_MODULES), on a GPU as on a CPU.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch.utils.data import Dataset
from transfer_queue import KVBatchMeta
from verl.single_controller.base.decorator import Dispatch
from verl.single_controller.base.decorator import register
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.seqlen_balancing import calculate_workload
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.engine_workers import TrainingWorker
from verl.workers.rollout.replica import RolloutReplica
from verl.workers.rollout.replica import RolloutReplicaRegistry

from training.batch import filled
from training.batch import rl_batch
from training.batch import steps_of
from training.checkpoint import opening
from training.checkpoint import verify_folder
from training.checkpoint import write_folder
from training.checkpoint import write_published
from training.cpu_platform import join_ray
from training.main_ppo import Recorded
from training.off_policy import settled
from training.rows import Row
from training.vision import vision_of

_ALL: Any = Dispatch.ONE_TO_ALL  # type: ignore[attr-defined]  # veRL adds its names as it runs

# veRL asks for the class of a rollout engine by name, and makes none of it (`_enable_hybrid_replicas`).
RolloutReplicaRegistry.register("recorded", lambda: RolloutReplica)


def _recorded(config: Any) -> Recorded:
    return Recorded.read(config.data.train_files)


class RecordedSteps(Dataset):
    """veRL's dataset: the numbers of the optimizer steps. It asks for a prompt; there is none."""

    def __init__(self, data_files: str, **_: Any) -> None:
        self._count = len(Recorded.read(data_files).steps)

    def __len__(self) -> int:
        return max(1, self._count)  # veRL refuses none; a trainer that only serves has none yet

    def __getitem__(self, item: int) -> dict[str, Any]:
        return {"index": torch.tensor(item), "raw_prompt": []}


class RecordedManager:
    """veRL's agent-loop manager: "generates" the rows of a step by putting them where the trainer looks for them."""

    def __init__(self, recorded: Recorded, ranks: int) -> None:
        self._recorded = recorded
        self._ranks = ranks

    @classmethod
    def create(cls, config: Any, **_: Any) -> "RecordedManager":
        """As veRL calls it, with clients of a rollout engine that there is not."""
        return cls(_recorded(config), config.trainer.nnodes * config.trainer.n_gpus_per_node)

    def generate_sequences(self, batch: TensorDict) -> None:
        """Put the rows of the steps in `batch` into TransferQueue."""
        for uid, index in zip(batch["uid"], batch["index"].tolist(), strict=True):
            put(self._recorded, self._recorded.steps[index], uid, "train", self._ranks)
            tq.kv_put(key=uid, partition_id="train", tag={"status": "finished"})


def put(recorded: Recorded, rows: Sequence[Row], uid: str, partition: str, multiple: int) -> KVBatchMeta:
    """Put `rows` into TransferQueue, filled up to a `multiple` by rows with nothing to train; their keys, in order."""
    batch = rl_batch(rows, recorded.advantages, recorded.settings.weighting, vision_of(Path(recorded.base_model)))
    del batch["temperature"]  # veRL passes one beside the rows
    if len({row.temperature for row in recorded.rows}) > 1:
        batch["temperatures"] = torch.tensor([row.temperature for row in rows])
    if batch["position_ids"].dim() == 3:
        # TransferQueue would take rows of one length, or a row alone, for ragged along the four positions of a token.
        positions = [own.T.contiguous() for own in batch.pop("position_ids").unbind()]
        batch["positions"] = torch.nested.as_nested_tensor(positions, layout=torch.jagged)
    lengths = batch["responses"].offsets().diff().tolist()
    rewards = [recorded.rewards[row.rollout] for row in rows]
    # Only veRL's own metrics read these: the rollout's reward at the end of each of its rows, and its calls.
    batch["rm_scores"] = torch.nested.as_nested_tensor(
        [torch.tensor([0.0] * (n - 1) + [r]) for n, r in zip(lengths, rewards, strict=True)], layout=torch.jagged
    )
    batch["returns"] = batch["advantages"]
    batch["num_turns"] = torch.tensor([len(row.calls) for row in rows])
    batch["rollout_log_probs"] = batch["old_log_probs"]
    batch = filled(batch, multiple)
    tags = [
        {
            "status": "success",
            "is_padding": n >= len(rows),
            "prompt_len": prompt,
            "response_len": response,
            "seq_len": prompt + response,
            "global_steps": 0,
            "min_global_steps": 0,
            "max_global_steps": 0,
        }
        for n, (prompt, response) in enumerate(
            zip(batch["prompts"].offsets().diff().tolist(), batch["responses"].offsets().diff().tolist(), strict=True)
        )
    ]
    keys = [f"{uid}_{n}_0" for n in range(len(batch))]
    tq.kv_batch_put(keys=keys, fields=batch, tags=tags, partition_id=partition)
    return KVBatchMeta(partition_id=partition, keys=keys, tags=tags)


def taken(batch: TensorDict) -> TensorDict:
    """The batch that `put` put into TransferQueue as `batch.rl_batch` made it."""
    if "temperatures" in batch.keys():  # noqa: SIM118  # tensordict has no other `in`
        batch["temperature"] = batch.pop("temperatures")
    if "positions" in batch.keys():  # noqa: SIM118
        own = batch.pop("positions")
        batch["position_ids"] = torch.nested.nested_tensor_from_jagged(own.values().T, own.offsets(), jagged_dim=2)
    return batch


@register_trainer("recorded")
class RecordedTrainer(PPOTrainer):
    """veRL's trainer fed by `RecordedManager`: without a rollout engine, or with veRL's replicas serving its policy
    between the updates (`training.front`)."""

    def __init__(self, config: Any) -> None:
        self._enable_hybrid_replicas = config.actor_rollout_ref.rollout.name != "recorded"
        self._serves = False
        super().__init__(config)

    def serve(self) -> None:
        """Give the weights to the replicas, which veRL leaves asleep, and let them answer."""
        if not self._serves:
            self.checkpoint_manager.update_weights(self.global_steps)
            self.checkpoint_manager.resume_generation_replicas()
            self._serves = True

    def rest(self) -> None:
        """Let the replicas answer no more: what they had is the trainer's now."""
        if self._serves:
            self.checkpoint_manager.abort_replicas()
            self.checkpoint_manager.sleep_replicas()
            self._serves = False

    def go_on(self, config: Any) -> None:
        """Be ready to `fit` to the next job's `config`, which resumes from what this trainer holds."""
        self.config = config
        self.replay_buffer = self._build_replay_buffer()
        self._init_dataloader()
        self._init_dump_executor()
        resumed = config.trainer.resume_from_path
        self.global_steps = int(resumed.rpartition("_")[2]) if resumed else 0
        rollout = config.actor_rollout_ref.rollout
        for group in (self.actor_rollout_wg, *([self.ref_policy_wg] if self.use_reference_policy else [])):
            group.take(rollout.custom.recorded, rollout.log_prob_max_token_len_per_gpu)
        self.on_init_end()

    def _build_replay_buffer(self) -> Any:
        self.trainer_mode = "sync"
        return super()._build_replay_buffer()

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        self.role_worker_mapping = {role: ray.remote(RecordedWorker) for role in self.role_worker_mapping}

    def on_init_end(self) -> None:
        """Score the rows where that is wanted before the first step, and plan the steps of what is left of them."""
        recorded = _recorded(self.config)
        settings = recorded.settings
        if not recorded.rows:
            return
        if settings.lora_rank and settings.kl_coef:
            # FSDP2 settles in its first pass in which type gradients come. With the adapter off there would be none.
            self._log_probs(recorded, [min(recorded.rows, key=lambda row: len(row.ids))])
        rows, found = settled(recorded.rows, partial(self._log_probs, recorded), settings)
        steps = steps_of(rows, settings, recorded.seed, recorded.epoch)
        self.total_training_steps += len(steps) - len(recorded.steps)
        replace(recorded, steps=steps, found=found).write(Path(self.config.data.train_files))

    def on_train_end(self) -> None:
        """There was no step, or veRL would not call this: every row was rejected. The weights are saved as they are."""
        self.global_steps -= 1
        self._save_checkpoint()

    def _balance_batch(
        self, batch: KVBatchMeta, metrics: dict[str, Any], logging_prefix: str = "", keep_minibatch: bool = False
    ) -> KVBatchMeta:
        """As many rows for each rank, of about as many tokens. veRL's own would ask the tokenizer for rows to fill up
        with; ours are filled up."""
        lengths = torch.tensor([tag["seq_len"] for tag in batch.tags])
        ranks = self.resource_pool_manager.get_n_gpus()
        parts = get_seqlen_balanced_partitions(
            calculate_workload(lengths).tolist(), k_partitions=ranks, equal_size=True
        )
        batch.reorder([place for part in parts for place in part])
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self.config.actor_rollout_ref.actor.ppo_mini_batch_size = len(batch)  # all of it is one optimizer step
        return super()._update_actor(batch, metrics)

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        # The next epoch has steps of its own: it must not begin where this one's ended.
        Path(self.config.trainer.default_local_dir, f"global_step_{self.global_steps}", "data.pt").unlink()
        recorded = _recorded(self.config)
        base, folder = Path(recorded.base_model), Path(recorded.folder)
        short = opening(recorded.rows[0], base)
        (scores,) = self._log_probs(recorded, [short])
        self.actor_rollout_wg.export()
        verify_folder(folder, base, getattr(torch, recorded.settings.dtype), short, scores)

    def _log_probs(self, recorded: Recorded, rows: Sequence[Row]) -> list[list[float]]:
        """What `Learner.log_probs` gives, at the rows' own temperature."""
        batch = put(recorded, rows, "probe", "probe", self.resource_pool_manager.get_n_gpus())
        keys = batch.keys[: len(rows)]
        batch = self._balance_batch(batch, {})
        batch.extra_info.update(compute_loss=False, temperature=rows[0].temperature)
        self.actor_rollout_wg.compute_log_prob(batch)
        found = tq.kv_batch_get(keys=keys, partition_id="probe", select_fields=["log_probs"])
        tq.kv_clear(keys=batch.keys, partition_id="probe")
        # veRL's entry i is about token i + 1.
        return [[0.0, *values[:-1].tolist()] for values in found["log_probs"].unbind()]

    def on_step_end(self) -> None:
        """The weights are served when they are published, by `serve`."""

    def on_sample_end(self) -> None:
        """What serves sleeps already (`rest`)."""


class RecordedTraining(TrainingWorker):
    """veRL's worker of one model, with batches as `put` puts them."""

    def infer_batch(self, data: TensorDict) -> TensorDict:
        return super().infer_batch(taken(data))

    def train_mini_batch(self, data: TensorDict) -> TensorDict:
        return super().train_mini_batch(taken(data))


class RecordedWorker(ActorRolloutRefWorker):
    """veRL's worker with the loss of `training.learner`, which reports sums that can be added up exactly, and with the
    model of its role."""

    actor_worker_cls = RecordedTraining
    ref_worker_cls: Any = RecordedTraining

    def __init__(self, config: Any, role: str, **more: Any) -> None:
        join_ray()
        self._recorded = Recorded.read(config.rollout.custom.recorded)
        config = deepcopy(config)  # of all roles in this process
        if role == "ref":
            config.model.path = self._recorded.reference
        else:
            config.model.lora_rank, config.model.lora_alpha = self._recorded.settings.lora
        super().__init__(config=config, role=role, **more)
        if role == "actor_rollout_ref":
            self.ref_worker_cls = self._reference

    def _reference(self, config: Any) -> RecordedTraining:
        """The reference in one worker with the policy: veRL would take the policy's own folder."""
        model = deepcopy(self.config.model)
        model.path, model.lora_rank = self._recorded.reference, 0
        return RecordedTraining(replace(config, model_config=omega_conf_to_dataclass(model)))

    @register(dispatch_mode=_ALL)
    def init_model(self) -> None:
        """veRL's, with the seed of a run's adapter."""
        from training.learner import Learner
        from training.learner import seed_everything

        if self._recorded.settings.lora_rank:
            seed_everything(self._recorded.seed, 0)
        super().init_model()
        if self.actor is not None:
            self._learner = Learner(Path(self._recorded.base_model), self._recorded.settings, worker=self.actor)
            self.actor.set_loss_fn(self._learner.loss)

    @register(dispatch_mode=_ALL)
    def take(self, recorded: str, longest: int) -> None:
        """Go on with the rows in the file `recorded`, in passes of up to `longest` tokens."""
        self._recorded = Recorded.read(recorded)
        for worker in (self.actor, self.ref):
            if worker is not None:
                engine: Any = worker.engine_config
                engine.max_token_len_per_gpu = engine.infer_max_token_len_per_gpu = longest

    @register(dispatch_mode=_ALL)
    def load_checkpoint(self, *where: Any, **how: Any) -> None:
        """veRL's, but for the learning rate, which is the job's."""
        super().load_checkpoint(*where, **how)
        if self._recorded.settings.strategy == "fsdp2":
            self._learner.keep_rate()

    @register(dispatch_mode=_ALL)
    def export(self) -> None:
        """Write the weights as a Hugging Face folder."""
        recorded, write = self._recorded, write_folder
        if recorded.settings.strategy == "fsdp2":
            weights = self._learner.state_dict()
        else:  # each rank takes part in putting a tensor together; not run on GPUs here
            assert self.actor is not None
            write, weights = write_published, {}
            for name, tensor in self.actor.engine.get_per_tensor_param()[0]:
                if self.rank == 0:
                    weights[name] = tensor.cpu()
        if self.rank == 0:
            dtype = getattr(torch, recorded.settings.dtype)
            write(weights, Path(recorded.base_model), Path(recorded.folder), dtype)
