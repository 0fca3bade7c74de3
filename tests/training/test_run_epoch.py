"""One epoch as its own process: job in, checkpoint and result out."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support.epochs import record
from tests.support.epochs import run_job
from tests.support.epochs import train
from tests.support.policy import save_policy

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_policy(tmp_path / "base")


def test_an_epoch_from_records_to_weights(tmp_path: Path, base: Path) -> None:
    recorded = record(tmp_path, base, 1, [1.0, 0.0, 0.0, None])
    result = train(tmp_path, recorded, tmp_path / "ck", None)
    assert (result["skipped"], result["alarms"]) == (False, [])
    assert (result["rows"], result["rollouts"], result["trained_tokens"], result["row_tokens"]) == (3, 3, 24, 57)
    assert result["reward_mean"] == pytest.approx(1 / 3)
    assert result["groups"]["sizes"] == {"r-e001-t": [3, 4]}
    assert result["excluded"] == {"no_reward": 1}
    assert result["staleness"] == {"0": 3}
    assert "off_policy" not in result
    assert result["logprob_agreement"]["mean"] < 1e-6
    assert result["logprob_agreement"]["tokens"] == 24
    assert result["grad_norm"] > 0
    assert result["device"] == "cpu"
    assert set(result["seconds"]) == {"rows", "load", "update", "checkpoint"}
    before = load_file(base / "model.safetensors")
    after = load_file(Path(result["hf_path"]) / "model.safetensors")
    assert before.keys() == after.keys()
    assert all((before[name] != after[name]).any() for name in before)


def test_stale_rows_are_corrected_bounded_and_an_alarm_if_too_many_are_rejected(tmp_path: Path, base: Path) -> None:
    recorded = record(tmp_path, save_policy(tmp_path / "older", seed=1), 2, [1.0, 0.0, 0.25])
    recorded |= {"weight_version": recorded["weight_version"] + 2}
    how = {"old_policy": "recomputed", "rollout_is": "token", "rollout_rs": "token_k2", "rollout_rs_threshold": 1e-4}
    refused = train(tmp_path, recorded, tmp_path / "ck", None, **how)
    assert (refused["skipped"], refused["staleness"]) == (True, {})
    assert refused["refused"] == {"stale": 6}
    result = train(tmp_path, recorded, tmp_path / "ck", None, max_staleness=2, **how)
    assert result["staleness"] == {"2": 3}
    lost = result["off_policy"]["rejected_tokens"]
    assert 0.2 * 24 < lost < 24
    assert result["trained_tokens"] == result["logprob_agreement"]["tokens"] - lost == 24 - lost
    assert [alarm for alarm in result["alarms"] if alarm.startswith(f"{lost / 24:.0%} of the tokens to train were rej")]


def test_a_rollout_without_advantage_is_trained_where_another_term_has_a_gradient(tmp_path: Path, base: Path) -> None:
    recorded = record(tmp_path, base, 1, [1.0, 0.0, 0.0])
    without = train(tmp_path, recorded, tmp_path / "ck", None, negative_weight=0.0)
    with_kl = train(tmp_path, recorded, tmp_path / "ck", None, negative_weight=0.0, kl_coef=0.1, entropy_coef=0.1)
    assert (without["rollouts"], with_kl["rollouts"]) == (1, 3)
    assert with_kl["reference_kl"] == pytest.approx(0.0, abs=1e-6)


def test_a_job_that_is_wrong_says_where(tmp_path: Path, base: Path) -> None:
    done = run_job(tmp_path, {"base_model": str(base), "epoch": -1})
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"ConfigError: {tmp_path}/job.json: epoch: Input should be greater than or equal to 0"
    ]
