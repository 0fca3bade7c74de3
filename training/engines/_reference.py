"""What the logprobs should be: transformers' own forward pass in float32, no cache, no batching."""

from pathlib import Path

import torch

from training.engines._loading import load_float32


@torch.inference_mode()
def reference_logprobs(folder: Path, prompt: list[int], sampled: list[int], temperature: float) -> list[float]:
    """The logprob of each of `sampled` after `prompt` and the ones before it, after temperature (0 counts as 1)."""
    model = load_float32(folder).eval()
    logits = model(torch.tensor([prompt + sampled]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    logprobs = (logits / (temperature or 1.0)).log_softmax(-1)
    return logprobs.gather(-1, torch.tensor(sampled)[:, None])[:, 0].tolist()
