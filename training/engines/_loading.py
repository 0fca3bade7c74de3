"""Loading a model, one at a time.

While it loads, `transformers` turns off the tying of weights for the whole process, and two loads at once leave it off
for good: a model that ties its embeddings then has an output embedding of random numbers.
"""

import threading
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

_ONE = threading.Lock()


def load_float32(folder: Path, **options: Any) -> Any:
    """The folder's causal language model in float32, from any thread. Raises what transformers raises."""
    with _ONE:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True, **options)
