"""Jobs are what the flow writes: whole, strict, and unchanged by a round trip."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from flows.config import TrainingConfig
from training.job import SftJob
from training.job import TrainJob
from training.job import TrainSettings


def test_jobs_survive_a_round_trip() -> None:
    job = TrainJob(base_model="m", epoch=1, rollouts="r", calls=("c",), checkpoint_dir="k", result="x")
    assert TrainJob.model_validate_json(job.model_dump_json()) == job
    sft = SftJob(base_model="m", calls=("c",), out="o", result="x")
    assert SftJob.model_validate_json(sft.model_dump_json()) == sft


def test_a_field_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValidationError, match="learningrate"):
        TrainSettings(learningrate=1.0)  # type: ignore[call-arg]


def test_the_runs_configuration_is_a_valid_setting() -> None:
    config = TrainingConfig(clip_ratio_high=0.3, kl_coef=0.1, old_policy="recomputed", rollout_is="token")
    assert TrainSettings(**config.model_dump()).model_dump(include=set(config.model_dump())) == config.model_dump() | {
        "leave_out": tuple(config.leave_out)
    }


def test_options_that_contradict_are_refused_in_a_job_too() -> None:
    with pytest.raises(ValidationError, match=r"clip_ratio_high 0\.1 is below clip_ratio 0\.2"):
        TrainSettings(clip_ratio_high=0.1)


def test_ranks_of_verls_trainer_are_not_ours_to_start() -> None:
    assert TrainSettings(processes=4).residents == 4
    assert TrainSettings(processes=4, nodes=2, trainer="main_ppo").residents == 1


def test_writing_a_job_needs_no_torch() -> None:
    program = "import sys, training.job; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
