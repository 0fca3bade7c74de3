"""The learner over veRL's engine, on the CPU: it scores as transformers does and moves what it should move."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from proxy_addons.errors import ConfigError
from tests.support.policy import hf_log_probs
from tests.support.policy import make_learner
from tests.support.policy import save_mixture
from tests.support.policy import save_policy
from tests.support.policy import whole
from tests.support.seeing import save_seeing_policy
from training.checkpoint import export
from training.job import TrainSettings
from training.reference import reference_folder
from training.rows import Row

if TYPE_CHECKING:
    from training.learner import Learner

pytestmark = pytest.mark.timeout(180)  # veRL takes seconds to import


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def learner(folder: Path) -> Iterator["Learner"]:
    yield make_learner(folder, learning_rate=1e-2)


def row(folder: Path, rollout: str, prompt: list[int], answer: list[int], temperature: float = 1.0) -> Row:
    ids, mask = prompt + answer, [0] * len(prompt) + [1] * len(answer)
    scores = hf_log_probs(folder, ids, temperature)
    logprobs = [score if bit else 0.0 for score, bit in zip(scores, mask, strict=True)]
    return Row(rollout, rollout[0], ids, mask, logprobs, (0,), (0,), temperature)


def test_scores_are_those_of_transformers_for_rows_of_any_length(folder: Path, learner: "Learner") -> None:
    rows = [
        row(folder, "a", list(range(n)), [5, 6, 7], temperature) for n, temperature in ((3, 1.0), (40, 0.5), (9, 2.0))
    ]
    rows.append(whole(rows[1]))
    for one, scores in zip(rows, learner.log_probs(rows), strict=True):
        theirs = hf_log_probs(folder, list(one.ids), one.temperature)
        selected = [score if bit else 0.0 for score, bit in zip(theirs, one.mask, strict=True)]
        assert scores == pytest.approx(selected, abs=1e-5)


def test_the_head_only_looks_where_a_token_is_trained(folder: Path, learner: "Learner") -> None:
    seen = []
    engine: Any = learner._worker.engine
    engine.module.lm_head.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[1]))
    learner.log_probs([row(folder, "a", list(range(50)), [5, 6, 7])])
    assert seen == [3]


def test_an_update_makes_the_better_answer_likelier(folder: Path, learner: "Learner") -> None:
    good, bad = row(folder, "a1", [1, 2, 3], [10, 11]), row(folder, "a2", [1, 2, 3], [20, 21, 22])
    before = learner.log_probs([good, bad])
    numbers = learner.update([good, bad], {"a1": 1.0, "a2": -1.0}, seed=0, step=1)
    after = learner.log_probs([good, bad])
    assert sum(after[0][3:]) > sum(before[0][3:])
    assert sum(after[1][3:]) < sum(before[1][3:])
    assert numbers["logprob_agreement"]["mean"] < 1e-6
    assert numbers["logprob_agreement"]["tokens"] == 5
    assert numbers["pg_loss"] == pytest.approx((-1.0 * 2 + 1.0 * 3) / 5, abs=1e-5)
    assert numbers["entropy_estimate"] == pytest.approx(-(sum(good.logprobs) + sum(bad.logprobs)) / 5, abs=1e-4)
    assert (numbers["optimizer_steps"], numbers["refused_steps"]) == (1, 0)
    assert numbers["grad_norm"] > 0


def test_disagreement_with_the_record_is_measured(folder: Path, learner: "Learner") -> None:
    one = row(folder, "a1", [1, 2, 3], [10, 11])
    off = Row(
        "a1",
        "a",
        one.ids,
        one.mask,
        [p - 0.25 * bit for p, bit in zip(one.logprobs, one.mask, strict=True)],
        (0,),
        (0,),
    )
    numbers = learner.update([off], {"a1": 1.0}, seed=0, step=1)
    assert numbers["logprob_agreement"]["mean"] == pytest.approx(0.25, abs=1e-5)
    assert numbers["logprob_agreement"]["max"] == pytest.approx(0.25, abs=1e-5)
    assert numbers["ppo_kl"] == pytest.approx(-0.25, abs=1e-5)
    assert numbers["clip_fraction"] == 1.0  # exp(0.25) > 1.2 with a positive advantage


def test_mini_batches_are_whole_groups_and_never_empty(folder: Path) -> None:
    learner = make_learner(folder, mini_batches=4, ppo_epochs=2)
    rows = [row(folder, name, [1, 2], [3]) for name in ("a1", "a2", "b1", "b2", "c1")]
    numbers = learner.update(rows, {r.rollout: 1.0 for r in rows}, seed=0, step=0)
    assert numbers["optimizer_steps"] == 3 * 2


def test_micro_batches_do_not_change_the_gradient(folder: Path) -> None:
    rows = [row(folder, f"a{n}", [1] * n, [10 + n, 3]) for n in range(1, 6)]
    advantages = {r.rollout: float(n - 2) for n, r in enumerate(rows)}
    norms = [
        make_learner(folder, micro_batch_tokens=tokens).update(rows, advantages, seed=0, step=0)["grad_norm"]
        for tokens in (7, 1000)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_activations_computed_again_do_not_change_the_gradient(folder: Path) -> None:
    rows = [row(folder, "a1", [1, 2], [3, 4])]
    norms = [
        make_learner(folder, gradient_checkpointing=again).update(rows, {"a1": 1.0}, seed=0, step=0)["grad_norm"]
        for again in (False, True)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_a_mixture_of_experts_is_trained_and_exported(tmp_path: Path) -> None:
    base = save_mixture(tmp_path / "base")
    learner, rows = make_learner(base, learning_rate=1e-2), [row(base, "a1", [1, 2, 3], [10, 11])]
    everywhere = [whole(each) for each in rows]
    before, numbers = learner.log_probs(everywhere)[0], learner.update(rows, {"a1": 1.0}, seed=0, step=0)
    assert numbers["logprob_agreement"]["mean"] < 1e-5
    export(learner, base, tmp_path / "hf", torch.float32, rows[0])
    after = hf_log_probs(tmp_path / "hf", list(rows[0].ids))
    assert after == pytest.approx(learner.log_probs(everywhere)[0], abs=1e-5)
    assert sum(after[3:]) > sum(before[3:])
    one, two = (load_file(place / "model.safetensors") for place in (base, tmp_path / "hf"))
    assert one.keys() == two.keys()
    assert any(".experts." in name and not one[name].equal(two[name]) for name in one)


def test_a_gradient_that_is_not_finite_moves_nothing(folder: Path, learner: "Learner") -> None:
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    numbers = learner.update([row(folder, "a1", [1, 2], [3])], {"a1": math.nan}, seed=0, step=0)
    assert (numbers["refused_steps"], numbers["grad_norm"]) == (1, None)
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.state_dict().items())


def test_imitation_lowers_the_loss(folder: Path, learner: "Learner") -> None:
    rows = [row(folder, "a1", [1, 2, 3], [10, 11]), row(folder, "a2", [4], [20])]
    first = learner.imitate(rows)
    assert first["loss"] == pytest.approx(-sum(sum(r.logprobs) for r in rows) / 3, abs=1e-4)
    assert first["tokens"] == 3
    for _ in range(5):
        last = learner.imitate(rows)
    assert last["loss"] < first["loss"] - 0.5


def test_entropy_and_the_kl_to_the_reference_are_reported(folder: Path, tmp_path: Path) -> None:
    other = save_policy(tmp_path / "other", seed=1)
    rows = [row(folder, "a1", [1, 2, 3], [10, 11]), row(folder, "a2", [1, 2, 3], [20, 21, 22])]
    advantages = {"a1": 1.0, "a2": -1.0}
    learner = make_learner(folder, kl_coef=0.5, kl_penalty="kl", reference_model=str(other), entropy_coef=0.25)
    numbers = learner.update(rows, advantages, seed=0, step=0)
    theirs = [hf_log_probs(other, list(each.ids))[3:] for each in rows]
    gaps = [a - b for each, own in zip(rows, theirs, strict=True) for a, b in zip(each.logprobs[3:], own, strict=True)]
    assert numbers["reference_kl"] == pytest.approx(sum(gaps) / 5, abs=1e-5)
    assert 0 < numbers["entropy"] < math.log(64)
    assert numbers["pg_loss"] == pytest.approx((-1.0 * 2 + 1.0 * 3) / 5, abs=1e-5), "the policy term alone"


def test_the_reference_is_the_model_that_training_began_with(folder: Path) -> None:
    rows = [row(folder, "a1", [1, 2, 3], [10, 11])]
    learner = make_learner(folder, kl_coef=0.5, learning_rate=1e-2)
    first, second = (learner.update(rows, {"a1": 1.0}, seed=0, step=step)["reference_kl"] for step in range(2))
    assert first == pytest.approx(0.0, abs=1e-6)
    assert second > 1e-4


def test_a_reference_that_cannot_be_one_is_refused(folder: Path, tmp_path: Path) -> None:
    rows = [row(folder, "a1", [1, 2, 3], [10, 11])]
    learner = make_learner(folder, kl_coef=0.5, reference_model=str(tmp_path))
    with pytest.raises(ConfigError, match=r"no Hugging Face folder; it has no config\.json"):
        learner.update(rows, {"a1": 1.0}, seed=0, step=0)


def test_a_reference_that_sees_is_none_of_a_policy_that_does_not(folder: Path, tmp_path: Path) -> None:
    settings = TrainSettings(kl_coef=0.5, reference_model=str(save_seeing_policy(tmp_path)))
    with pytest.raises(ConfigError, match="and the policy must both see images, or neither"):
        reference_folder(folder, settings)


def test_an_older_versions_checkpoint_is_refused_and_nothing_of_it_is_loaded(
    learner: "Learner", tmp_path: Path
) -> None:
    """It was one pickle per process."""
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/model_world_size_1_rank_0.pt").write_bytes(b"not to be opened")
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    with pytest.raises(ConfigError, match=f"resume: {tmp_path}/trainer is of another version; start a new run with"):
        learner.load(tmp_path / "trainer")
    assert all(tensor.equal(before[name]) for name, tensor in learner.state_dict().items())


def test_where_every_row_is_rejected_there_is_no_step(folder: Path) -> None:
    learner = make_learner(folder, rollout_rs="seq_max_k2", rollout_rs_threshold=1e-3)
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    one = row(folder, "a1", [1, 2, 3], [10, 11])
    off = replace(one, logprobs=[p - 0.25 * bit for p, bit in zip(one.logprobs, one.mask, strict=True)])
    numbers = learner.update([off], {"a1": 1.0}, seed=0, step=0)
    assert (numbers["optimizer_steps"], numbers["pg_loss"], numbers["grad_norm"]) == (0, None, None)
    assert (numbers["off_policy"]["rejected_tokens"], numbers["off_policy"]["rejected_share"]) == (2, 1.0)
    assert numbers["logprob_agreement"]["mean"] == pytest.approx(0.25, abs=1e-5)
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.state_dict().items())
