"""A LoRA adapter's weights → the whole weights that they stand for."""

from collections.abc import Mapping

import torch
from verl.utils.fsdp_utils import normalize_peft_param_name


def merged(tensors: Mapping[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
    """W + `scale` B A for each weight W with an adapter, others as they are, under their Hugging Face names.

    `tensors` has peft's names. Nothing is rounded on the way: the sum has the dtype of the tensors.
    """
    whole: dict[str, torch.Tensor] = normalize_peft_param_name(dict(tensors))
    for name, a in tensors.items():
        if ".lora_A." in name:
            b = tensors[name.replace(".lora_A.", ".lora_B.")]
            (place,) = normalize_peft_param_name({name.replace(".lora_A.default", ""): a})
            whole[place] = whole[place] + scale * (b @ a)
    return whole
