"""An adapter is trained instead of the weights, and what is exported is the weights with it merged."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from peft import LoraConfig
from peft import get_peft_model
from transformers import Qwen3ForCausalLM

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from tests.support.policy import hf_log_probs
from tests.support.policy import make_learner
from tests.support.policy import save_policy
from tests.support.policy import whole
from training.checkpoint import export
from training.job import TrainJob
from training.rows import Row
from training.run_epoch import _check_resume

if TYPE_CHECKING:
    from training.learner import Learner

pytestmark = pytest.mark.timeout(180)  # veRL takes seconds to import


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(tmp_path_factory.mktemp("policy"), tied=request.param)


def rows(folder: Path) -> list[Row]:
    made = []
    for name, ids in (("a1", [1, 2, 3, 10, 11]), ("a2", [1, 2, 3, 20, 21, 22])):
        mask = [0, 0, 0, *[1] * (len(ids) - 3)]
        scores = [p * bit for p, bit in zip(hf_log_probs(folder, ids), mask, strict=True)]
        made.append(Row(name, "a", ids, mask, scores, (0,), (0,)))
    return made


def trained(folder: Path, steps: int = 3, **settings: float | str) -> "Learner":
    learner = make_learner(folder, lora_rank=4, lora_alpha=12, learning_rate=1e-2, **settings)
    for step in range(steps):
        learner.update(rows(folder), {"a1": 1.0, "a2": -1.0}, seed=0, step=step)
    return learner


def test_in_bfloat16_the_reference_may_be_asked_first(folder: Path) -> None:
    numbers = make_learner(folder, lora_rank=4, kl_coef=0.1, dtype="bfloat16").update(
        rows(folder), {"a1": 1.0, "a2": -1.0}, seed=0, step=0
    )
    assert (numbers["refused_steps"], numbers["reference_kl"]) == (0, 0.0) and numbers["grad_norm"] > 0


def test_the_export_is_the_base_with_the_adapter_merged(folder: Path, tmp_path: Path) -> None:
    learner, (good, bad) = trained(folder), rows(folder)
    export(learner, folder, tmp_path / "hf", torch.float32, good)
    for row, before in ((good, hf_log_probs(folder, list(good.ids))), (bad, hf_log_probs(folder, list(bad.ids)))):
        found = hf_log_probs(tmp_path / "hf", list(row.ids))
        assert found == pytest.approx(learner.log_probs([whole(row)])[0], abs=1e-5)
        assert max(abs(a - b) for a, b in zip(found, before, strict=True)) > 0.1
    # As peft itself merges the same adapter.
    theirs = get_peft_model(
        Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32),
        LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=12, target_modules="all-linear"),
    )
    state = learner._state()["model"]
    adapter = {name: t.full_tensor() for name, t in state.items() if "lora_" in name}
    assert not theirs.load_state_dict(adapter, strict=False).unexpected_keys
    wanted = theirs.merge_and_unload().state_dict()
    ours = learner.state_dict()
    assert ours.keys() == wanted.keys()
    assert max(float((ours[name] - wanted[name]).abs().max()) for name in wanted) < 1e-6


def test_only_the_adapter_moves_and_is_saved(folder: Path, tmp_path: Path) -> None:
    fresh, learner = trained(folder, steps=0), trained(folder)
    base = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    assert all(fresh.state_dict()[name].equal(base[name]) for name in base)
    moved = {name for name, tensor in learner.state_dict().items() if not tensor.equal(base[name])}
    assert moved == {name for name in base if "_proj." in name}
    learner.save(tmp_path / "adapter")
    other = trained(folder, steps=0)
    other.load(tmp_path / "adapter")
    assert all(other.state_dict()[name].equal(tensor) for name, tensor in learner.state_dict().items())
    for each in (learner, other):
        each.update(rows(folder), {"a1": 1.0, "a2": -1.0}, seed=0, step=3)
    assert all(other.state_dict()[name].equal(tensor) for name, tensor in learner.state_dict().items())


def test_an_export_without_the_adapter_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = trained(folder)
    monkeypatch.setattr(learner, "state_dict", trained(folder, steps=0).state_dict)
    with pytest.raises(InfrastructureError, match="differ from the trainer's by"):
        export(learner, folder, tmp_path / "hf", torch.float32, rows(folder)[0])


def test_the_reference_is_the_base_or_another_model(folder: Path, tmp_path: Path) -> None:
    other, both = save_policy(tmp_path / "other", seed=1), rows(folder)
    advantages = {"a1": 1.0, "a2": -1.0}
    learner = trained(folder, kl_coef=0.5)
    everywhere = [whole(row) for row in both]
    now = learner.log_probs(everywhere)
    for settings, reference in (({}, folder), ({"reference_model": str(other)}, other)):
        learner.settings = type(learner.settings).model_validate(learner.settings.model_dump() | settings)
        found = learner._reference_log_probs(everywhere)
        for row, scores in zip(both, found, strict=True):
            assert scores == pytest.approx(hf_log_probs(reference, list(row.ids)), abs=1e-5)
    assert learner.log_probs(everywhere) == now, "the adapter is on again"
    assert learner.update(both, advantages, seed=0, step=3)["reference_kl"] > 0.01


def test_what_a_checkpoint_trained_cannot_change(tmp_path: Path) -> None:
    job = {"base_model": "m", "epoch": 2, "rollouts": "r", "calls": (), "checkpoint_dir": "k", "result": "x"}
    for before, settings, told in (
        ({}, {"lora_rank": 4}, "trained all weights and this job trains a LoRA adapter of rank 4 and alpha 8"),
        ({"lora": [4, 8]}, {}, "trained a LoRA adapter of rank 4 and alpha 8 and this job trains all weights"),
        ({"lora": [4, 8]}, {"lora_rank": 4, "lora_alpha": 4}, "alpha 8 and this job trains a LoRA adapter of rank 4"),
        (
            {"lora": [0, 0]},
            {"trainer": "main_ppo"},
            "is not a checkpoint of this trainer, strategy and number of ranks",
        ),
        (
            {"trainer": "main_ppo", "strategy": "fsdp2", "ranks": 2},
            {"trainer": "main_ppo", "processes": 4},
            "is not a checkpoint of this trainer, strategy and number of ranks",
        ),
    ):
        with pytest.raises(ConfigError, match=told):
            _check_resume(TrainJob(**job, resume="c", settings=settings), {"epoch": 1, **before})  # type: ignore[arg-type]
    _check_resume(TrainJob(**job, resume="c", settings={"lora_rank": 4}), {"epoch": 1, "lora": [4, 8]})  # type: ignore[arg-type]
