"""An update by veRL's own `main_ppo` on Ray, on one machine or several: `trainer: "main_ppo"`.

This process builds the rows, as for any update, and writes them and veRL's whole configuration into a file each; then
veRL's trainer, which stays for the next update (`training.standing`), trains on them (`training.recorded` is what it
does differently) and leaves a checkpoint and its metrics. On several machines rows and checkpoints must lie on a disk
that all of them see, under the same path.
"""

import hashlib
import importlib.util
import json
import math
import os
import pickle
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import torch
import yaml

from proxy_addons.errors import ConfigError
from training import standing
from training.batch import steps_of
from training.checkpoint import begin
from training.checkpoint import publish
from training.job import TrainJob
from training.job import TrainSettings
from training.losses import actor_options
from training.numbers import SUMS
from training.numbers import step_numbers
from training.numbers import summary
from training.reference import reference_folder
from training.rows import Row
from training.verl_options import fsdp_options
from training.verl_options import megatron_options
from training.verl_options import model_options
from training.verl_options import optimizer_options
from training.vision import vision_of

if TYPE_CHECKING:
    from training.front import Front


@dataclass(frozen=True)
class Recorded:
    """What one update trains on: its rows, those of each optimizer step, and by rollout its advantage and its reward.

    Before the first step the trainer writes it again, with the steps of what was not rejected (`off_policy.settled`).
    """

    rows: Sequence[Row]
    steps: Sequence[Sequence[Row]]
    advantages: Mapping[str, float]
    rewards: Mapping[str, float]
    settings: TrainSettings
    base_model: str
    reference: str
    seed: int
    epoch: int
    folder: str
    """Where the Hugging Face folder goes."""
    found: dict[str, Any] = field(default_factory=dict)
    """What is reported of the rows beside the steps' numbers."""

    def write(self, path: Path) -> None:
        """Write it for `read`."""
        path.write_bytes(pickle.dumps(self))

    @staticmethod
    def read(path: str) -> "Recorded":
        """What `write` wrote."""
        found: Recorded = pickle.loads(Path(path).read_bytes())
        return found


def check(settings: TrainSettings, base_model: Path) -> str:
    """The device to train on. Raises ConfigError if `main_ppo` cannot train `base_model` so, here."""
    if settings.strategy == "megatron" and vision_of(base_model) is not None:
        raise ConfigError(f"strategy: {base_model} sees images, which megatron is not given here; use fsdp2")
    if settings.strategy == "megatron" and importlib.util.find_spec("megatron") is None:
        raise ConfigError(
            "strategy: 'megatron' needs megatron-core and Megatron-Bridge, which are not installed here; install"
            " verl[megatron] or use fsdp2"
        )
    if settings.nodes > 1 and not os.environ.get("RAY_ADDRESS"):
        raise ConfigError(
            f"nodes: {settings.nodes} machines need a Ray cluster; start ray on them and set RAY_ADDRESS=HOST:PORT"
        )
    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if settings.served_len:
        _check_serving(settings, base_model, device)
    return device


def _check_serving(settings: TrainSettings, base_model: Path, device: str) -> None:
    """Raise ConfigError if the trainer cannot serve what it trains."""
    if vision_of(base_model) is not None:
        raise ConfigError(f"engine: hybrid serves no images, which {base_model} sees; use vllm")
    if device == "cuda" and importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "engine: hybrid needs vllm in the trainer's Python, beside verl; install it there or use vllm"
        )
    if device == "cpu" and settings.served_gpus > 1:
        raise ConfigError(f"engine_gpus: {settings.served_gpus} GPUs to a replica, and device is cpu; make it 1")
    if settings.nodes * settings.processes % settings.served_gpus:
        raise ConfigError(
            f"engine_gpus: {settings.nodes * settings.processes} GPUs (nodes × processes) are not whole replicas of"
            f" {settings.served_gpus}"
        )


def update(
    job: TrainJob,
    rows: Sequence[Row],
    advantages: Mapping[str, float],
    rewards: Mapping[str, float],
    front: "Front | None" = None,
) -> tuple[dict[str, Any], Path]:
    """What `Learner.update` and `checkpoint.save_checkpoint` do, by veRL's trainer: the numbers and the checkpoint.

    veRL's configuration, log and metrics lie beside the result, as `main_ppo.*`. `front` is where the trainer serves
    the policy, which it does not from here on. Raises ConfigError if it cannot be done and InfrastructureError if it
    failed.
    """
    settings = job.settings
    device = check(settings, Path(job.base_model).absolute())
    temperatures = sorted({row.temperature for row in rows})
    if settings.strategy == "megatron" and len(temperatures) > 1:
        raise ConfigError(f"strategy: megatron trains rows of one temperature here, and these have {temperatures}")
    steps = steps_of(rows, settings, job.seed, job.epoch)
    folder = begin(Path(job.checkpoint_dir).absolute(), job.epoch)
    given = _recorded(job, rows, steps, advantages, rewards, str(folder / "hf"))
    folder.mkdir()
    recorded = folder / "recorded.pickle"
    given.write(recorded)
    beside = Path(job.result).absolute().with_name
    config = beside("main_ppo.yaml")
    config.write_text(yaml.safe_dump(verl_config(job, steps, recorded, folder / "trainer", device), sort_keys=False))
    standing.connect(ray_namespace(folder.parent), settings, device)
    if front:
        front.rest()
    standing.update(_stands_as(job, job.resume), config, beside("main_ppo.jsonl"), beside("main_ppo.log"))
    made = Recorded.read(str(recorded))
    recorded.unlink()
    numbers = summary(_steps(beside("main_ppo.jsonl"), made.steps, settings), settings) | made.found
    state = {"epoch": job.epoch, "seed": job.seed, "lora": settings.lora, **written_by(settings)}
    published = publish(folder, state, settings.keep_checkpoints)
    standing.keep(_stands_as(job, str(published)))
    return {"device": device, **numbers}, published


def serve(job: TrainJob) -> list[Any]:
    """Have the trainer serve the weights that `job` begins from: the handles of its replicas, in Ray.

    Raises ConfigError if it cannot be done and InfrastructureError if it failed.
    """
    device = check(job.settings, Path(job.base_model).absolute())
    beside = Path(job.result).absolute().with_name
    recorded = beside("serving.pickle")
    _recorded(job, (), (), {}, {}, "").write(recorded)
    config = beside("serving.yaml")
    out = beside("serving")  # nothing is saved there
    config.write_text(yaml.safe_dump(verl_config(job, (), recorded, out, device), sort_keys=False))
    standing.connect(ray_namespace(Path(job.checkpoint_dir).absolute()), job.settings, device)
    try:
        return standing.serve(_stands_as(job, job.resume), config, beside("serving.log"))
    finally:
        recorded.unlink()


def _recorded(
    job: TrainJob,
    rows: Sequence[Row],
    steps: Sequence[Sequence[Row]],
    advantages: Mapping[str, float],
    rewards: Mapping[str, float],
    folder: str,
) -> Recorded:
    """What `job` and these come to, with absolute paths."""
    base = Path(job.base_model).absolute()
    return Recorded(
        rows=rows,
        steps=steps,
        advantages=advantages,
        rewards=rewards,
        settings=job.settings,
        base_model=str(base),
        reference=str(reference_folder(base, job.settings).absolute()),
        seed=job.seed,
        epoch=job.epoch,
        folder=folder,
    )


def ray_namespace(checkpoints: Path) -> str:
    """Where in Ray the trainer of the run with this folder of checkpoints stands."""
    return f"openforge-ray-{hashlib.sha256(bytes(checkpoints)).hexdigest()[:12]}"


def _stands_as(job: TrainJob, checkpoint: str | None) -> str:
    """What a trainer with the settings of `job` is that holds `checkpoint`, whose place may have held another; without
    one, the model that a run begins with."""
    held = None
    if checkpoint is not None:
        held = [str(Path(checkpoint).absolute()), Path(checkpoint, "state.json").stat().st_mtime_ns]
    return json.dumps([job.base_model, held, job.settings.model_dump()])


def written_by(settings: TrainSettings) -> dict[str, Any]:
    """Of a checkpoint's state, what another trainer cannot go on from: veRL's checkpoints are of their ranks."""
    if settings.trainer == "direct":
        return {}
    return {"trainer": "main_ppo", "strategy": settings.strategy, "ranks": settings.nodes * settings.processes}


def verl_config(
    job: TrainJob, steps: Sequence[Sequence[Row]], recorded: Path, out: Path, device: str
) -> dict[str, Any]:
    """veRL's configuration of the job, on top of that of its main_ppo."""
    settings = job.settings
    # veRL gives a policy with an adapter no reference but itself without it: where there is to be another, the adapter
    # is kept from it (`recorded.RecordedWorker` puts it on).
    whole = settings.model_copy(update={"lora_rank": 0} if settings.reference_model else {})
    longest = max([settings.micro_batch_tokens, *(len(row.ids) for part in steps for row in part)])
    before = _steps_before(job.resume)
    actor: dict[str, Any] = {
        "use_dynamic_bsz": True,
        "use_torch_compile": False,
        "ppo_max_token_len_per_gpu": longest,
        "optim": optimizer_options(settings),
        **actor_options(settings),
    }
    ref: dict[str, Any] = {"log_prob_max_token_len_per_gpu": longest}
    model = model_options(Path(job.base_model).absolute(), whole)
    away: dict[str, Any] = {}
    if settings.served_len and device == "cuda":
        model["load_tokenizer"] = True  # veRL's vLLM asks it how many ids there are
        away = {"param_offload": True, "optimizer_offload": True}  # the GPUs are the replicas' between the updates
    if settings.strategy == "megatron":
        actor["megatron"] = megatron_options(settings) | away
        ref["megatron"] = megatron_options(settings) | away
    else:
        actor |= {"strategy": "fsdp2", "fsdp_config": fsdp_options(settings) | away}
        ref["fsdp_config"] = fsdp_options(settings) | away | {"forward_only": device == "cuda"}
        if device == "cpu":  # veRL pins the memory of what is forward only, which takes a GPU
            ref["optim"] = {"_target_": "verl.workers.config.FSDPOptimizerConfig", **optimizer_options(settings)}
    return {
        "defaults": [
            "ppo_trainer",
            *([{"override model_engine": "megatron"}] if settings.strategy == "megatron" else []),
            "_self_",
        ],
        "actor_rollout_ref": {
            "model": model,
            "actor": actor,
            "ref": ref,
            "rollout": {
                **_served(settings, device),
                "nnodes": 1,  # veRL refuses 0, though there is no rollout engine beside the trainer
                "temperature": steps[0][0].temperature if steps else 1.0,
                "tensor_model_parallel_size": settings.served_gpus,
                "log_prob_use_dynamic_bsz": True,
                "log_prob_max_token_len_per_gpu": longest,
                "agent": {"agent_loop_manager_class": "training.recorded.RecordedManager"},
                "custom": {"recorded": str(recorded)},
            },
        },
        # The recorded log-probabilities are the old policy's; advantages come with the rows.
        "algorithm": {"adv_estimator": "grpo", "rollout_correction": {"bypass_mode": True}},
        "critic": {"enable": False},
        "reward": {"num_workers": 0},
        "data": {
            "custom_cls": {"path": "pkg://training.recorded", "name": "RecordedSteps"},
            "train_files": str(recorded),
            "val_files": str(recorded),
            "train_batch_size": 1,
            "dataloader_num_workers": 0,
            "shuffle": False,
        },
        "trainer": {
            "v1": {"trainer_mode": "recorded"},
            "device": device,
            "nnodes": settings.nodes,
            "n_gpus_per_node": settings.processes,
            "project_name": "openforge",
            "experiment_name": f"epoch-{job.epoch:03}",
            "logger": ["file"],
            "val_before_train": False,
            "total_epochs": before + len(steps) + 1,
            "total_training_steps": max(1, before + len(steps)),
            "save_freq": before + len(steps),
            "default_local_dir": str(out),
            "resume_mode": "resume_path" if job.resume else "disable",
            "resume_from_path": f"{job.resume}/trainer/global_step_{before}" if job.resume else None,
        },
        "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": settings.nodes}}},
    }


def _served(settings: TrainSettings, device: str) -> dict[str, Any]:
    """Of the replicas that serve the policy: vLLM's, on a CPU ours (`training.replica`)."""
    if not settings.served_len:
        return {"name": "recorded"}
    return {
        "name": "embedded" if device == "cpu" else "vllm",
        "dtype": settings.dtype,
        "max_model_len": settings.served_len,
        "max_num_batched_tokens": max(8192, settings.served_len),
    }


def _steps_before(resume: str | None) -> int:
    """The optimizer steps of the run before this job, as the checkpoint's folder is named by veRL."""
    if resume is None:
        return 0
    (folder,) = Path(resume).glob("trainer/global_step_*")
    return int(folder.name.removeprefix("global_step_"))


def _steps(metrics: Path, steps: Sequence[Sequence[Row]], settings: TrainSettings) -> list[dict[str, float]]:
    """The numbers of each optimizer step, from what veRL logged of it.

    veRL has made means of the sums of all micro-batches and ranks, over as many of them for each name; their number is
    found from the step's tokens.
    """
    found = []
    for line, rows in zip(metrics.read_text().splitlines(), steps, strict=True):
        data = json.loads(line)["data"]
        count = sum(row.trained_tokens for row in rows) / data["actor/tokens"]
        means = {name: data[f"actor/{name}"] for name in SUMS if f"actor/{name}" in data}
        sums = {name: mean if name == "max_gap" else mean * count for name, mean in means.items()}
        norm = data["actor/grad_norm"]
        found.append(step_numbers(sums, data["actor/loss"], math.nan if norm is None else norm, settings))
    return found
