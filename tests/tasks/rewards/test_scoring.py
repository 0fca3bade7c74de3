from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from proxy_addons.errors import VerifierError
from tasks.rewards.scoring import Scoring
from tasks.rewards.scoring import compose
from tasks.rewards.scoring import read_scoring


def test_without_a_rule_the_reward_is_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text('version = "1.0"\n')
    assert read_scoring(tmp_path) == Scoring()
    assert compose(Scoring(), {"reward": 0.3, "style": 7.0}) == 0.3


def test_weights_are_normalised_and_the_gate_holds(tmp_path: Path) -> None:
    rule = "[metadata.reward]\noutcome = 'tests'\nweights = {tests = 3, style = 1.0}\ngate = 0.5\n"
    (tmp_path / "task.toml").write_text(rule)
    scoring = read_scoring(tmp_path)
    assert compose(scoring, {"tests": 0.5, "style": 1.0}) == pytest.approx((3 * 0.5 + 1) / 4)
    assert compose(scoring, {"tests": 0.49, "style": 1.0}) == 0.0
    assert compose(scoring.model_copy(update={"gate": 0.0}), {"tests": 0.0, "style": 1.0}) == 0.25


@pytest.mark.parametrize("parts", [{"tests": 1.0}, {"style": 1.0}, {"tests": 1.0, "style": 1.5}, {}])
def test_a_part_that_is_missing_or_no_share_is_no_verdict(parts: dict[str, float]) -> None:
    with pytest.raises(VerifierError, match="counts in this task's reward"):
        compose(Scoring(outcome="tests", weights={"tests": 1.0, "style": 1.0}), parts)


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ("outcome = 'luck'", "outcome"),
        ("gate = 2.0", "gate"),
        ("weights = {a = -1.0}", "weights.a"),
        ("weights = {a = 'x'}", "weights.a"),
        ("bonus = 1", "bonus"),
        ("answer = '../x'", "metadata.reward: Value error, answer must be"),
        ("outcome = 'math'\nweights = {a = 1.0}", "weights are for what test.sh gives"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_one_line(tmp_path: Path, rule: str, field: str) -> None:
    (tmp_path / "task.toml").write_text(f"[metadata.reward]\n{rule}\n")
    with pytest.raises(ConfigError, match=field) as found:
        read_scoring(tmp_path)
    assert len(str(found.value).splitlines()) == 1 and str(found.value).startswith("task.toml: metadata.reward")
