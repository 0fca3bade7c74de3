"""The configurations for GPUs are configurations of a run, and veRL's own are built from them."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PretrainedConfig
from transformers import Qwen3MoeConfig
from transformers import Qwen3VLConfig

from flows.config import load_config
from tasks.run import ROOT
from training.cpu_platform import select_device
from training.job import TrainSettings

pytestmark = pytest.mark.timeout(180)  # veRL takes seconds to import

FOLDER = ROOT / "deploy" / "configs"
MODELS: dict[str, tuple[str, PretrainedConfig]] = {
    "qwen3-30b-a3b": ("Qwen3MoeForCausalLM", Qwen3MoeConfig()),
    "qwen3-vl-8b": ("Qwen3VLForConditionalGeneration", Qwen3VLConfig()),
}


def test_each_is_told_with_what_was_not_done() -> None:
    text = (FOLDER / "README.md").read_text()
    assert "Not run on GPUs here" in text
    assert {path.stem for path in FOLDER.glob("*.json")} == MODELS.keys()
    assert all(f"`{name}.json`" in text for name in MODELS)


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
