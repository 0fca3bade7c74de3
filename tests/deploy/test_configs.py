"""The configurations for GPUs are configurations of a run, and veRL's own are built from them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose
from hydra import initialize_config_dir
from transformers import PretrainedConfig
from transformers import Qwen3MoeConfig
from transformers import Qwen3VLConfig

from flows.config import load_config
from flows.train import train_settings
from tasks.run import ROOT
from training.cpu_platform import select_device
from training.job import TrainJob
from training.job import TrainSettings
from training.main_ppo import verl_config
from training.rows import Row

pytestmark = pytest.mark.timeout(180)  # veRL takes seconds to import

FOLDER = ROOT / "deploy" / "configs"
MODELS: dict[str, tuple[str, PretrainedConfig]] = {
    "qwen3-30b-a3b": ("Qwen3MoeForCausalLM", Qwen3MoeConfig()),
    "qwen3-vl-8b": ("Qwen3VLForConditionalGeneration", Qwen3VLConfig()),
}

MEGATRON = "qwen3-30b-a3b-megatron"
HYBRID = "qwen3-30b-a3b-hybrid"


def test_each_is_told_with_what_was_not_done() -> None:
    text = (FOLDER / "README.md").read_text()
    assert "Not run on GPUs here" in text
    names = {path.stem for path in FOLDER.glob("*.json")}
    assert names == {*MODELS, MEGATRON, HYBRID}
    assert all(f"`{name}.json`" in text for name in names)


@pytest.mark.parametrize("name", MODELS)
def test_it_becomes_a_run_and_a_worker_of_verl(name: str, tmp_path: Path) -> None:
    given: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    config = load_config(given)
    for key, value in given["training"].items():
        assert getattr(config.training, key) == value
    settings = TrainSettings(**config.training.model_dump())

    architecture, shape = MODELS[name]
    shape.architectures = [architecture]
    shape.save_pretrained(tmp_path)
    select_device("cpu")
    from training.worker_config import actor_config
    from training.worker_config import worker_config

    worker, actor = worker_config(tmp_path, settings, "constant", 0, 1), actor_config(settings)
    assert worker.model_config.hf_config.model_type == shape.model_type
    assert worker.model_config.enable_gradient_checkpointing is True
    assert worker.engine_config.strategy == actor.strategy == "fsdp2"
    engine: Any = worker.engine_config
    assert engine.mixed_precision["param_dtype"] == "bfloat16"
    assert worker.optimizer_config.lr == 1e-6
    assert (actor.use_kl_loss, actor.kl_loss_coef) == (settings.kl_coef > 0, settings.kl_coef)
    assert actor.entropy_coeff == settings.entropy_coef


def composed(name: str, folder: Path) -> Any:
    """veRL's configuration of the run's update, composed and checked by veRL: as far as that goes without GPUs."""
    shape_name, shape = MODELS["qwen3-30b-a3b"]
    shape.architectures = [shape_name]
    shape.save_pretrained(folder / "model")
    job = TrainJob(
        base_model=str(folder / "model"),
        epoch=1,
        rollouts="",
        calls=(),
        checkpoint_dir="",
        result="",
        settings=TrainSettings(**train_settings(load_config(json.loads((FOLDER / f"{name}.json").read_text())))),
    )
    row = Row("r", "g", [1, 2, 3], [0, 1, 1], [0.0, -1.0, -1.0], (0,), (0,))
    written = verl_config(job, [[row]], Path("/recorded"), Path("/out"), "cuda")
    (folder / "main_ppo.yaml").write_text(yaml.safe_dump(written))

    select_device("cpu")
    from verl.trainer.ppo.utils import need_critic
    from verl.trainer.ppo.utils import need_reference_policy
    from verl.utils.config import validate_config

    with initialize_config_dir(str(folder), version_base=None):
        config = compose("main_ppo", overrides=["hydra.searchpath=[pkg://verl.trainer.config]"])
    validate_config(config, need_reference_policy(config), need_critic(config))
    return config


def test_the_one_for_megatron_is_what_main_ppo_of_verl_takes(tmp_path: Path) -> None:
    config = composed(MEGATRON, tmp_path)
    from verl.utils.config import omega_conf_to_dataclass

    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    engine = actor.engine
    assert (actor.strategy, engine.strategy, engine.dtype) == ("megatron", "megatron", "bfloat16")
    assert (engine.tensor_model_parallel_size, engine.expert_model_parallel_size) == (4, 8)
    assert engine.override_transformer_config["recompute_granularity"] == "full"
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.optim.lr) == (True, 0.001, 1e-6)
    reference = omega_conf_to_dataclass(config.actor_rollout_ref.ref.megatron)
    assert (reference.tensor_model_parallel_size, reference.forward_only) == (4, True)
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (2, 8)
    assert config.actor_rollout_ref.rollout.name == "recorded"


def test_the_hybrid_one_has_verl_serve_what_it_trains(tmp_path: Path) -> None:
    config = composed(HYBRID, tmp_path)
    from verl.utils.config import omega_conf_to_dataclass

    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert (rollout.name, rollout.tensor_model_parallel_size, rollout.dtype) == ("vllm", 4, "bfloat16")
    assert (rollout.logprobs_mode, rollout.free_cache_engine) == ("processed_logprobs", True)
    assert rollout.max_model_len == 32_768
    for role in ("actor", "ref"):
        engine = omega_conf_to_dataclass(config.actor_rollout_ref[role].fsdp_config)
        assert (engine.param_offload, engine.optimizer_offload) == (True, True)  # GPUs that the replicas need
    assert config.actor_rollout_ref.model.load_tokenizer is True
