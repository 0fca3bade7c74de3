"""An evaluation's configuration: what it takes from the profile, and what it refuses."""

from typing import Any

import pytest

from flows.config import PROFILES
from flows.config import load_config
from flows.evaluate_config import EvaluateConfig
from flows.evaluate_config import load_evaluate_config
from proxy_addons.errors import ConfigError


@pytest.mark.parametrize("file", sorted(PROFILES.glob("*.toml")), ids=lambda file: file.stem)
def test_it_takes_what_it_shares_with_training_from_the_profile(file: Any) -> None:
    evaluation, training = load_evaluate_config({"profile": file.stem}), load_config({"profile": file.stem})
    shared = evaluation.model_dump().keys() & training.model_dump().keys()
    assert {"max_model_len", "max_tokens", "temperature", "max_turns", "limits"} <= shared
    assert {name: getattr(evaluation, name) for name in shared} == {name: getattr(training, name) for name in shared}


def test_as_many_attempts_as_k_unless_told() -> None:
    assert load_evaluate_config({"k": 3}).wanted == 3
    assert load_evaluate_config({"k": 3, "attempts": 8}).wanted == 8


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"attempts": 2}, "attempts: 2 is refused: pass@k needs at least k (4)."),
        ({"epochs": 2}, "epochs: there is no such field; use one of"),
        ({"attempt": 2}, "attempt: there is no such field; did you mean attempts?"),
        ({"prices": {"promt": 2}}, "prices.promt: there is no such field; did you mean prompt?"),
        ({"policy": "random", "tasks": "/x"}, "policy: random is a script for the built-in tasks"),
        ({"engine": "hybrid"}, "engine: hybrid is a trainer that serves, and nothing is trained here; use vllm."),
        ({"k": 0}, "k: 0 is refused: input should be greater than or equal to 1."),
    ],
)
def test_a_refusal_names_field_and_remedy(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_evaluate_config(given)
    assert sentence in str(refusal.value)


def test_every_field_is_described_for_the_form() -> None:
    schema = EvaluateConfig.model_json_schema()
    parts = [schema, *schema["$defs"].values()]
    found = [(name, field) for part in parts for name, field in part["properties"].items()]
    assert [name for name, field in found if "description" not in field and "$ref" not in field] == []
