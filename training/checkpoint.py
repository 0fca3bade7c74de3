"""Checkpoints on disk, and the Hugging Face folder that the policy server loads.

    <checkpoint_dir>/epoch-0003/trainer/     what veRL needs to go on: weights or adapter, optimizer, scheduler
                               /hf/          the weights as a Hugging Face folder, tokenizer included
                               /state.json   epoch, seed, rank and alpha of the adapter
    <checkpoint_dir>/latest.json             names the newest whole checkpoint
    <checkpoint_dir>/best.json               names the best on the held-out tasks, where the flow measured several

A checkpoint is written under a temporary name and renamed when it is whole; `latest.json` follows last, so a crash at
any moment leaves the one before in place. The order of the data needs no file: it is drawn from (seed, epoch). Files
of `trainer/` are pickles: load only checkpoints that you wrote.
"""

import json
import os
import shutil
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import Protocol

import torch
import torch.distributed as dist
from huggingface_hub import save_torch_state_dict
from transformers import AutoConfig
from transformers import AutoModelForCausalLM
from transformers import AutoModelForImageTextToText

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from training.cpu_platform import rank
from training.job import BEST
from training.rows import Row
from training.vision import vision_of

PROBE_TOKENS = 256
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Largest |difference| of a log-probability between the trainer and the exported folder."""

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".index.json")


class Trained(Protocol):
    """What is saved (a `learner.Learner`; named here so that reading a checkpoint needs no veRL)."""

    def save(self, folder: Path) -> None: ...

    def state_dict(self) -> dict[str, torch.Tensor]: ...

    def log_probs(self, rows: list[Row]) -> list[list[float]]: ...


def save_checkpoint(
    learner: Trained,
    directory: Path,
    state: dict[str, Any],
    *,
    base_model: Path,
    dtype: torch.dtype,
    probe: Row,
    keep: int,
) -> Path:
    """Publish a checkpoint with `state` (which holds "epoch") and return its folder. All processes of an update call
    this together; the first of them writes what is not its shard.

    The newest `keep` stay, and always the one before this one: a retry of this epoch goes on from it.
    A checkpoint of the same epoch is replaced. Raises InfrastructureError if the exported folder does not give the
    trainer's log-probabilities on `probe`; then nothing is published.
    """
    temporary = begin(directory, state["epoch"])
    learner.save(temporary / "trainer")
    export(learner, base_model, temporary / "hf", dtype, probe)
    if rank() == 0:
        publish(temporary, state, keep)
    _together()
    return _final(directory, state["epoch"])


def begin(directory: Path, epoch: int) -> Path:
    """Where to write the checkpoint of `epoch` before `publish`; what a process that died left there is removed."""
    final = _final(directory, epoch)
    if rank() == 0:
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.glob(".tmp-*"):
            shutil.rmtree(left)
    _together()
    return directory / f".tmp-{final.name}"


def publish(temporary: Path, state: dict[str, Any], keep: int) -> Path:
    """Give a whole checkpoint its name, point to it, remove older ones, and return its folder."""
    directory = temporary.parent
    final = _final(directory, state["epoch"])
    (temporary / "state.json").write_text(json.dumps(state))
    _rename(temporary, final)
    pointer = directory / ".latest.json.tmp"
    pointer.write_text(json.dumps({"checkpoint": final.name}))
    os.replace(pointer, directory / "latest.json")
    for old in sorted(directory.glob("epoch-*"))[: -max(keep, 2)]:
        if old not in (final, _best(directory)):
            shutil.rmtree(old)
    return final


def _final(directory: Path, epoch: int) -> Path:
    return directory / f"epoch-{epoch:04}"


def _together() -> None:
    """Wait for the other processes of the update, if there are any."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()


def _best(directory: Path) -> Path | None:
    """The checkpoint that did best on the held-out tasks, if they were measured."""
    file = directory / BEST
    return directory / str(json.loads(file.read_text())["checkpoint"]) if file.exists() else None


def latest(directory: Path) -> Path | None:
    """The newest whole checkpoint in `directory`; None if there is none."""
    pointer = directory / "latest.json"
    if not pointer.exists():
        return None
    return directory / str(json.loads(pointer.read_text())["checkpoint"])


def read_state(folder: Path) -> dict[str, Any]:
    """The `state` of the checkpoint in `folder`. Raises ConfigError if that is not a checkpoint."""
    try:
        state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"resume: {folder} is not a checkpoint ({error}); give one that training published"
        ) from error
    return state


def export(learner: Trained, base_model: Path, folder: Path, dtype: torch.dtype, probe: Row) -> None:
    """Write the weights as a Hugging Face folder in `dtype`, with everything but weights copied from `base_model`.

    The folder is loaded again and must give the trainer's log-probabilities on `probe`, with every weight present.
    Raises InfrastructureError if it does not.
    """
    short = opening(probe, base_model)
    weights, trained = learner.state_dict(), learner.log_probs([short])[0]
    if rank() == 0:
        write_folder(weights, base_model, folder, dtype)
        verify_folder(folder, base_model, dtype, short, trained)


def opening(row: Row, base_model: Path) -> Row:
    """The beginning of `row`, to be scored at temperature 1, all of it."""
    vision = vision_of(base_model)
    short = vision.opening(row, PROBE_TOKENS) if vision else replace(row, ids=row.ids[:PROBE_TOKENS])
    ones = [1] * (len(short.ids) - 1)
    return replace(short, mask=[0, *ones], logprobs=[0.0] * len(short.ids), temperature=1.0, importance=None)


def write_folder(weights: Mapping[str, torch.Tensor], base_model: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write `weights`, under their names in transformers, as a Hugging Face folder with the rest of `base_model`."""
    model = _auto(base_model).from_config(AutoConfig.from_pretrained(base_model), dtype=dtype)
    model.load_state_dict(weights)
    model.save_pretrained(folder)
    _copy_the_rest(base_model, folder)


def write_published(weights: Mapping[str, torch.Tensor], base_model: Path, folder: Path, dtype: torch.dtype) -> None:
    """`write_folder` for weights under the names that a model is published with, which differ where it has experts."""
    folder.mkdir()
    save_torch_state_dict({name: tensor.to(dtype).contiguous() for name, tensor in weights.items()}, folder)
    config = AutoConfig.from_pretrained(base_model)
    config.dtype = dtype
    config.save_pretrained(folder)
    _copy_the_rest(base_model, folder)


def _copy_the_rest(base_model: Path, folder: Path) -> None:
    for file in base_model.iterdir():
        if file.is_file() and file.name != "config.json" and not file.name.endswith(_WEIGHTS):
            shutil.copy2(file, folder / file.name)


def verify_folder(folder: Path, base_model: Path, dtype: torch.dtype, short: Row, trained: Sequence[float]) -> None:
    """Load `folder` again. Raises InfrastructureError unless every weight is there and it gives `trained`, the
    trainer's log-probability of each token of `short`, within `TOLERANCE`."""
    vision = vision_of(base_model)
    loaded: Any = _auto(base_model).from_pretrained(folder, dtype="auto", output_loading_info=True)
    inputs: dict[str, Any] = {"input_ids": torch.tensor([list(short.ids)])}
    if vision:
        (shown,), (positions,) = vision.inputs([short])
        inputs |= {**shown, "position_ids": positions[:, None]}
    _verify(folder, dtype, loaded, inputs, torch.tensor(trained[1:]))


def _auto(base_model: Path) -> Any:
    return AutoModelForImageTextToText if vision_of(base_model) else AutoModelForCausalLM


def _verify(folder: Path, dtype: torch.dtype, loaded: Any, inputs: dict[str, Any], trained: torch.Tensor) -> None:
    model, info = loaded
    lost = {what: sorted(info[what]) for what in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[what]}
    if lost or model.dtype != dtype:
        raise InfrastructureError(f"export {folder}: reloaded as {model.dtype} with {lost or 'all weights'}")
    with torch.no_grad():
        logits = model.eval()(**inputs).logits[0, :-1].float()
    served = logits.log_softmax(-1).gather(1, inputs["input_ids"][0, 1:, None])[:, 0]
    gap = (served - trained).abs().max().item()
    if not gap <= TOLERANCE[dtype]:
        raise InfrastructureError(f"export {folder}: log-probabilities differ from the trainer's by {gap:.2g}")


def _rename(temporary: Path, final: Path) -> None:
    """Give a folder its name when all of it is on disk. A folder that has the name already is put aside first."""
    os.sync()
    old = final.with_name(f".tmp-old-{final.name}")
    if final.exists():
        os.replace(final, old)
    os.replace(temporary, final)
    shutil.rmtree(old, ignore_errors=True)
