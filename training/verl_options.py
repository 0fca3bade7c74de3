"""Our settings → veRL's options, as its dataclasses (`worker_config`) and its `main_ppo` take them alike."""

from pathlib import Path
from typing import Any

from training.job import TrainSettings


def model_options(model_dir: Path, settings: TrainSettings) -> dict[str, Any]:
    """Of the model in `model_dir`, all of it or an adapter. Token ids come from the record: no tokenizer is loaded."""
    rank, alpha = settings.lora
    return {
        "path": str(model_dir),
        "load_tokenizer": False,
        "use_remove_padding": True,
        "enable_gradient_checkpointing": settings.gradient_checkpointing,
        "override_config": {"attn_implementation": "sdpa"},
        "lora_rank": rank,
        "lora_alpha": alpha,
        "lora": {"merge": True},  # what replicas are given, where they serve the policy
    }


def fsdp_options(settings: TrainSettings) -> dict[str, Any]:
    """Of the FSDP2 engine."""
    return {
        "strategy": "fsdp2",
        "model_dtype": "fp32",
        "mixed_precision": {"param_dtype": settings.dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        "use_torch_compile": False,
        "use_dynamic_bsz": True,
    }


def optimizer_options(settings: TrainSettings) -> dict[str, Any]:
    """Of AdamW."""
    return {
        "lr": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "clip_grad": settings.clip_grad,
    }


def megatron_options(settings: TrainSettings) -> dict[str, Any]:
    """Of Megatron's engine."""
    again = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return {
        "tensor_model_parallel_size": settings.tensor_parallel,
        "pipeline_model_parallel_size": settings.pipeline_parallel,
        "context_parallel_size": settings.context_parallel,
        "expert_model_parallel_size": settings.expert_parallel,
        "expert_tensor_parallel_size": 1,  # experts are shared whole; Megatron's own default is tensor_parallel
        "dtype": settings.dtype,
        "use_dynamic_bsz": True,
        **({"override_transformer_config": again} if settings.gradient_checkpointing else {}),
    }
