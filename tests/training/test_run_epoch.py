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
    assert result["logprob_agreement"]["mean"] < 1e-6
    assert result["logprob_agreement"]["tokens"] == 24
    assert result["grad_norm"] > 0
    assert result["device"] == "cpu"
    assert set(result["seconds"]) == {"rows", "load", "update", "checkpoint"}
    before = load_file(base / "model.safetensors")
    after = load_file(Path(result["hf_path"]) / "model.safetensors")
    assert before.keys() == after.keys()
    assert all((before[name] != after[name]).any() for name in before)


def test_a_job_that_is_wrong_says_where(tmp_path: Path, base: Path) -> None:
    done = run_job(tmp_path, {"base_model": str(base), "epoch": -1})
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"ConfigError: {tmp_path}/job.json: epoch: Input should be greater than or equal to 0"
    ]
