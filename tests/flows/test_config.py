"""The run configuration: defaults, profiles, and refusals that tell what to do."""

from datetime import datetime
from typing import Any

import pytest
from pydantic import ValidationError

from flows.config import PROFILES
from flows.config import RunConfig
from flows.config import load_config
from flows.config import new_run_name
from proxy_addons.errors import ConfigError


def test_nothing_given_is_the_local_profile() -> None:
    config = load_config()
    assert config.profile == "local"
    assert config.engine == "embedded"
    assert config == load_config(RunConfig())


@pytest.mark.parametrize("file", sorted(PROFILES.glob("*.toml")), ids=lambda file: file.stem)
def test_every_profile_loads(file: Any) -> None:
    assert load_config({"profile": file.stem}).profile == file.stem


def test_given_values_win_over_the_profile_and_the_rest_of_a_part_is_kept() -> None:
    config = load_config({"profile": "kubernetes", "concurrency": 3, "training": {"mini_batches": 2}})
    assert (config.engine, config.concurrency) == ("vllm", 3)
    assert (config.training.mini_batches, config.training.device) == (2, "cuda")


def test_only_set_fields_of_a_model_count_as_given() -> None:
    assert load_config(RunConfig(profile="kubernetes")).engine == "vllm"
    assert load_config(RunConfig(profile="kubernetes", engine="embedded")).engine == "embedded"


def test_a_loaded_config_loads_to_itself() -> None:
    config = load_config({"profile": "kubernetes", "epochs": 7})
    assert load_config(config) == config
    assert load_config(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"epoch": 3}, "epoch: there is no such field; did you mean epochs?"),
        (
            {"training": {"learningrate": 1}},
            "training.learningrate: there is no such field; did you mean learning_rate?",
        ),
        ({"epochs": 0}, "epochs: 0 is refused: input should be greater than or equal to 1."),
        ({"engine": "sglang"}, "engine: 'sglang' is refused: input should be 'embedded', 'vllm' or 'hybrid'."),
        (
            {"engine": "hybrid"},
            "engine: hybrid serves from the trainer and needs training.trainer 'main_ppo', not 'direct'.",
        ),
        (
            {"engine": "hybrid", "mode": "async", "training": {"trainer": "main_ppo"}},
            "engine: hybrid serves from the trainer and needs mode 'sync', not 'async'.",
        ),
        (
            {"engine": "hybrid", "training": {"trainer": "main_ppo", "lora_rank": 4}},
            "engine: hybrid is given an adapter's merged weights in bfloat16, whatever they are trained in; set",
        ),
        ({"engine_gpus": 2}, "engine_gpus: 2 is for engine hybrid; leave it out."),
        ({"profile": "cloud"}, "profile: 'cloud' is refused: input should be 'local' or 'kubernetes'."),
        ({"harnesses": ["codex", "codex"]}, "harnesses: ['codex', 'codex'] is refused: name each harness once."),
        (
            {"benchmark": {"tools": "mcp"}},
            "benchmark: tasks builtin is none; leave it out, or give tasks as NAME:FOLDER.",
        ),
        (
            {"tasks": "claweval:/x", "benchmark": {"train_share": 1}},
            "benchmark.train_share: 1 is refused: input should be less than 1.",
        ),
        ({"max_tokens": 16384}, "max_tokens: 16384 is refused: must be below max_model_len (8192)"),
        ({"top_p": 0.9}, "top_p: 0.9 is refused: the trainer computes log-probabilities of the whole distribution"),
        ({"top_k": 40}, "top_k: 40 is refused: the trainer computes"),
        (
            {"kubernetes": {"proxies": ["http://proxy-0:9101"]}},
            "kubernetes.proxies.0: 'http://proxy-0:9101' is refused: write a name or an address, without http://",
        ),
        (
            {"kubernetes": {"policies": ["policy:8200"]}},
            "kubernetes.policies.0: 'policy:8200' is refused: write it as http://HOST:PORT.",
        ),
        (
            {"kubernetes": {"images": {"codex": "my image"}}},
            "kubernetes.images.codex: 'my image' is refused: write it as REPOSITORY:TAG, without spaces.",
        ),
        ({"kubernetes": {"control_port": 0}}, "kubernetes.control_port: 0 is refused: input should be greater than"),
        ({"mode": "fast"}, "mode: 'fast' is refused: input should be 'sync' or 'async'."),
        ({"group_deadline_s": 0}, "group_deadline_s: 0 is refused: input should be greater than 0."),
        (
            {"mode": "async", "training": {"max_staleness": 0}},
            "mode: async lets rollouts begin before their epoch's weights are there",
        ),
        (
            {"training": {"clip_ratio_high": 0.1}},
            "training: clip_ratio_high 0.1 is below clip_ratio 0.2; raise it or leave it out.",
        ),
        ({"training": {"rollout_is": "token"}}, "training: rollout_is would correct twice: with old_policy 'recorded'"),
        (
            {"training": {"rollout_rs": "seq_max_k2"}},
            "training: rollout_rs and rollout_rs_threshold go together; set both or neither.",
        ),
        ({"training": {"rollout_rs_threshold": 2}}, "training: rollout_rs and rollout_rs_threshold go together"),
        (
            {"training": {"rollout_rs": "token_k1", "rollout_rs_threshold": 0.5}},
            "training: rollout_rs_threshold 0.5 with token_k1 keeps ratios from 1/0.5 to 0.5; set it above 1.",
        ),
        (
            {"training": {"reference_model": "base"}},
            "training: reference_model is read for the KL term only; set kl_coef or leave it out.",
        ),
        ({"training": {"nodes": 2}}, "training: nodes 2 needs veRL's trainer on Ray; set trainer main_ppo."),
        (
            {"training": {"trainer": "main_ppo", "tensor_parallel": 2}},
            "training: tensor_, pipeline_, context_ and expert_parallel are Megatron's; set strategy megatron.",
        ),
        (
            {"training": {"trainer": "main_ppo", "strategy": "megatron"}},
            "training: strategy megatron trains all weights, in bfloat16, on GPUs: leave lora_rank and device cpu out",
        ),
        (
            {"training": {"trainer": "main_ppo", "strategy": "megatron", "dtype": "bfloat16", "tensor_parallel": 2}},
            "training: 1 GPUs (nodes × processes) do not divide by tensor_, pipeline_ and context_parallel together,",
        ),
        ({"training": {"rollout_is": "row"}}, "training.rollout_is: 'row' is refused: input should be 'token' or"),
        (
            {"training": {"leave_out": ["side_calls"]}},
            "training.leave_out: ['side_calls'] is refused: there is no finding side_calls; docs/proxy.md lists them.",
        ),
        ({"judge": {"model": "m"}}, "judge.base_url: it is missing, and has no default; give it."),
        ({"run": "My Run"}, "run: 'My Run' is refused: run 'My Run': use at most 40 lower-case letters"),
    ],
)
def test_a_refusal_names_field_value_and_remedy(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config(given)
    assert str(refusal.value).startswith(sentence)


@pytest.mark.parametrize("judge", ["sk-1", ["sk-1"], {"api_key": "sk-1"}, {"base_url": "https://sk-1@h/v1"}])
def test_no_refusal_repeats_what_may_be_a_key(judge: Any) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config({"judge": judge})
    assert "sk-1" not in str(refusal.value)


def test_every_problem_gets_its_own_line() -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config({"epochs": 0, "sed": 1})
    assert sorted(line.split(":")[0] for line in str(refusal.value).splitlines()) == ["epochs", "sed"]


def test_a_field_far_from_every_name_gets_the_list() -> None:
    with pytest.raises(ConfigError, match=r"zzz: there is no such field; use one of memory_mb, cpus, pids\."):
        load_config({"limits": {"zzz": 1}})


def test_the_configuration_cannot_be_changed_after_loading() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_config().epochs = 5  # type: ignore[misc]


def test_every_field_is_described_for_the_form() -> None:
    schema = RunConfig.model_json_schema()
    parts = [schema, *schema["$defs"].values()]
    assert [name for part in parts for name, field in part["properties"].items() if not _described(field)] == []


def _described(field: dict[str, Any]) -> bool:
    return "description" in field or "$ref" in field


def test_a_made_name_is_a_valid_name() -> None:
    name = new_run_name(datetime(2026, 12, 1, 18, 30, 5))
    assert name == "run-20261201-183005"
    assert load_config({"run": name}).run == name
