"""A curation's configuration: what it takes from the profile, and what it refuses."""

from typing import Any

import pytest

from flows.config import load_config
from flows.curate_config import CurateConfig
from flows.curate_config import load_curate_config
from proxy_addons.errors import ConfigError

ENDPOINT = {"api": "openai", "base_url": "https://host/v1", "model": "m"}
MODEL = {"proposer": "model", "endpoint": ENDPOINT}


def test_it_takes_what_it_shares_with_training_from_the_profile() -> None:
    curation, training = load_curate_config(), load_config()
    shared = curation.model_dump().keys() & training.model_dump().keys() - {"tasks"}
    assert {"max_model_len", "max_tokens", "concurrency", "max_turns", "limits"} <= shared
    assert {name: getattr(curation, name) for name in shared} == {name: getattr(training, name) for name in shared}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"proposer": "model"},
            "endpoint: it is missing, and proposer model asks there; give api, base_url and model.",
        ),
        ({"endpoint": ENDPOINT}, "endpoint: it is refused with proposer templates, which asks nobody"),
        ({"refine_rounds": 1}, "refine_rounds: refinement starts from a probe; set probe_attempts, 4 for instance."),
        ({"min_pass_rate": 0.5, "max_pass_rate": 0.5}, "min_pass_rate: 0.5 is refused: must be below max_pass_rate."),
        ({"profile": "kubernetes"}, "profile: kubernetes is refused: tasks are built and checked in local sandboxes"),
        ({"run": "a" * 37}, "is refused: use at most 36 characters, for its probes' names."),
        ({"tasks": "builtin"}, "tasks: 'builtin' is refused: input should be 'proposed'."),
        ({"families": ["basics"]}, "families: there is no basics; use some of basic, by-suffix, "),
        (MODEL | {"families": ["basic"]}, "families: they are of the proposer templates; leave them out"),
        ({"proposal": 4}, "proposal: there is no such field; did you mean proposals?"),
        ({"canary_repeats": 1}, "canary_repeats: 1 is refused: input should be greater than or equal to 2."),
        ({"heldout_share": 1}, "heldout_share: 1 is refused: input should be less than 1."),
        (
            {"proposer": "model", "endpoint": ENDPOINT | {"base_url": "https://u:key@host/v1"}},
            "endpoint.base_url: its value is refused: write it as https://HOST/v1, without a key in it.",
        ),
        (
            {"proposer": "model", "endpoint": ENDPOINT | {"key_env": "sk-1234"}},
            "endpoint.key_env: its value is refused: give the name",
        ),
        ({"proposer": "model", "endpoint": ENDPOINT | {"key": "sk-1"}}, "endpoint.key: there is no such field"),
        (
            {"proposer": "model", "endpoint": ENDPOINT | {"max_usd": 1}},
            "endpoint.max_usd: 1 is refused: a limit needs prompt_usd and sampled_usd",
        ),
    ],
)
def test_a_refusal_is_one_line_with_field_and_remedy(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_curate_config(given)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert "u:key@" not in str(refusal.value) and "sk-1" not in str(refusal.value)


def test_a_model_and_its_endpoint_are_taken() -> None:
    assert load_curate_config(MODEL).endpoint is not None


def test_every_field_is_described_for_the_form() -> None:
    schema = CurateConfig.model_json_schema()
    parts = [schema, *schema["$defs"].values()]
    found = [(name, field) for part in parts for name, field in part["properties"].items()]
    assert [name for name, field in found if "description" not in field and "$ref" not in field] == []
