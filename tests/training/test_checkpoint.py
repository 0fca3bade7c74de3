"""Checkpoints are published whole or not at all, and an export is what was trained."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from tests.support.policy import hf_log_probs
from tests.support.policy import save_mixture
from tests.support.policy import save_policy
from training.checkpoint import export
from training.checkpoint import latest
from training.checkpoint import opening
from training.checkpoint import read_state
from training.checkpoint import save_checkpoint
from training.checkpoint import verify_folder
from training.checkpoint import write_published
from training.rows import Row

PROBE = Row("p", "p", [1, 2, 3, 4, 5], [0, 0, 0, 1, 1], [0.0] * 5, (0,), (0,))


class Weights:
    """What is saved, without veRL: the weights of a Hugging Face folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "optimizer").write_text("moments")

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32).state_dict())

    def log_probs(self, rows: list[Row]) -> list[list[float]]:
        return [hf_log_probs(self.folder, list(row.ids)) for row in rows]


def save(weights: Weights, directory: Path, base: Path, epoch: int, keep: int = 2) -> Path:
    state = {"epoch": epoch}
    return save_checkpoint(weights, directory, state, base_model=base, dtype=torch.float32, probe=PROBE, keep=keep)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_export_loads_as_what_it_says(tmp_path: Path, tied: bool, dtype: torch.dtype) -> None:
    base = save_policy(tmp_path / "base", tied=tied)
    trained = Weights(save_policy(tmp_path / "trained", tied=tied, seed=1))
    export(trained, base, tmp_path / "hf", dtype, PROBE)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["dtype"] == str(dtype).removeprefix("torch.")
    assert config["tie_word_embeddings"] is tied
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    for name, tensor in trained.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor.to(dtype))
    assert (tmp_path / "hf" / "tokenizer.json").read_text() == (base / "tokenizer.json").read_text()


def test_weights_under_published_names_load_as_what_was_trained(tmp_path: Path) -> None:
    trained = save_mixture(tmp_path / "trained")
    published = load_file(trained / "model.safetensors")
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in published  # transformers has one tensor for all experts
    write_published(published, trained, tmp_path / "hf", torch.float32)
    short = opening(PROBE, trained)
    scores = hf_log_probs(trained, list(short.ids))
    verify_folder(tmp_path / "hf", trained, torch.float32, short, scores)
    with pytest.raises(InfrastructureError, match=r"differ from the trainer's by 0\.01"):
        verify_folder(tmp_path / "hf", trained, torch.float32, short, [p + 0.01 for p in scores])


def test_an_export_that_differs_from_the_trainer_is_refused(tmp_path: Path) -> None:
    base = save_policy(tmp_path / "base")

    class Wrong(Weights):
        def log_probs(self, rows: list[Row]) -> list[list[float]]:
            return [[p + 0.01 for p in scores] for scores in super().log_probs(rows)]

    with pytest.raises(InfrastructureError, match=r"differ from the trainer's by 0\.01"):
        save(Wrong(base), tmp_path / "ck", base, 1)
    assert latest(tmp_path / "ck") is None


def test_the_newest_are_kept_and_the_pointer_follows(tmp_path: Path) -> None:
    base = save_policy(tmp_path / "base")
    for epoch in (1, 2, 3, 10):
        assert latest(tmp_path / "ck") != save(Weights(base), tmp_path / "ck", base, epoch)
    assert latest(tmp_path / "ck") == tmp_path / "ck" / "epoch-0010"
    assert sorted(p.name for p in tmp_path.glob("ck/epoch-*")) == ["epoch-0003", "epoch-0010"]
    assert read_state(tmp_path / "ck" / "epoch-0010") == {"epoch": 10}


def test_the_best_is_kept_for_as_long_as_it_is_named(tmp_path: Path) -> None:
    base = save_policy(tmp_path / "base")
    for epoch in (1, 2, 3, 4):
        save(Weights(base), tmp_path / "ck", base, epoch)
        if epoch == 1:
            (tmp_path / "ck" / "best.json").write_text('{"checkpoint": "epoch-0001"}')
    assert sorted(p.name for p in tmp_path.glob("ck/epoch-*")) == ["epoch-0001", "epoch-0003", "epoch-0004"]
    (tmp_path / "ck" / "best.json").write_text('{"checkpoint": "epoch-0004"}')
    save(Weights(base), tmp_path / "ck", base, 5)
    assert sorted(p.name for p in tmp_path.glob("ck/epoch-*")) == ["epoch-0004", "epoch-0005"]


def test_the_one_before_the_newest_stays_for_a_retry(tmp_path: Path) -> None:
    base = save_policy(tmp_path / "base")
    for epoch in (1, 2, 3):
        save(Weights(base), tmp_path / "ck", base, epoch, keep=1)
    assert sorted(p.name for p in tmp_path.glob("ck/epoch-*")) == ["epoch-0002", "epoch-0003"]


def test_a_save_that_dies_leaves_the_one_before(tmp_path: Path) -> None:
    base = save_policy(tmp_path / "base")
    first = save(Weights(base), tmp_path / "ck", base, 1)

    class Dies(Weights):
        def state_dict(self) -> dict[str, Any]:
            raise MemoryError

    with pytest.raises(MemoryError):
        save(Dies(base), tmp_path / "ck", base, 2)
    assert latest(tmp_path / "ck") == first
    assert not (tmp_path / "ck" / "epoch-0002").exists()
    save(Weights(base), tmp_path / "ck", base, 2)
    assert list((tmp_path / "ck").glob(".tmp-*")) == []


def test_the_same_epoch_again_replaces_it(tmp_path: Path) -> None:
    base = save_policy(tmp_path / "base")
    save(Weights(base), tmp_path / "ck", base, 1)
    save(Weights(save_policy(tmp_path / "other", seed=1)), tmp_path / "ck", base, 1)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "ck" / "epoch-0001" / "hf")
    assert torch.equal(model.state_dict()["lm_head.weight"], Weights(tmp_path / "other").state_dict()["lm_head.weight"])


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"resume: {tmp_path} is not a checkpoint"):
        read_state(tmp_path)
