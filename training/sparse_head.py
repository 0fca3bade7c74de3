"""veRL's FSDP engine, but the model's head only looks where a loss does.

In a harness's rollout most tokens are prompt: tools, instructions, what commands printed. Their log-probabilities are
in no loss, and a head of 150,000 tokens over all of a long row is the largest thing in memory. So the head is asked for
the positions whose next token is trained; all others have log-probability and entropy 0, which nothing reads.

A batch says by `scored` (rows, row's tokens) which tokens these are (`training.batch`).

Import this module after `cpu_platform.select_device`: veRL fixes its device when it is imported.
"""

from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.utils.torch_functional import entropy_from_logits
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead


class SparseHeadEngine(FSDPEngineWithLMHead):
    """Of veRL's options it takes those that `training.learner` sets: no padding, no sequence parallelism."""

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """veRL's, with the positions to keep."""
        inputs, more = super().prepare_model_inputs(micro_batch)
        if more["pad_size"]:
            raise ValueError("a packed row that is padded or cut over ranks is not what the head is told about")
        # The head at a token speaks of the next one. No row's first token is scored, so none wraps around.
        more["kept"] = micro_batch["scored"].values().roll(-1).nonzero()[:, 0]
        return inputs | {"logits_to_keep": more["kept"]}, more

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """`log_probs`, and `entropy` if it is wanted, of the row's length each: entry i is about token i + 1."""
        kept, offsets = output_args["kept"], micro_batch["input_ids"].offsets()
        logits = output.logits[0]
        if len(logits) != len(kept):
            logits = logits[kept]  # veRL's own forward of the models that see has no such option
        logits = logits.float()
        if not output_args["temperature_is_one"]:
            logits = logits / output_args["temperature_rmpad"][kept, None]

        def spread(values: torch.Tensor) -> torch.Tensor:
            whole = values.new_zeros(int(offsets[-1])).index_put((kept,), values)
            return torch.nested.nested_tensor_from_jagged(whole, offsets)

        chosen = logits.gather(1, output_args["input_ids_rmpad_rolled"][kept, None])[:, 0]
        found = {"log_probs": spread(chosen - logits.logsumexp(-1))}
        if tensordict_utils.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False):
            found["entropy"] = spread(entropy_from_logits(logits))
        return found
