import json
from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from proxy_addons.errors import VerifierError
from tasks.adapters import online_mind2web

TASK = {
    "task_id": "0a1b_110325",
    "confirmed_task": "Find the cheapest red kettle.",
    "website": "https://kettles.example/",
    "reference_length": 4,
    "level": "easy",
}


@pytest.mark.parametrize("field", ["confirmed_task", "task_description"])
def test_reads_a_task_under_both_names_of_its_text(tmp_path: Path, field: str) -> None:
    task = {name: value for name, value in TASK.items() if name != "confirmed_task"}
    (tmp_path / "Online_Mind2Web.json").write_text(json.dumps([task | {field: TASK["confirmed_task"]}]))
    (found,) = online_mind2web.read(tmp_path)
    assert (found.id, found.kind) == ("0a1b-110325", "easy")
    assert found.instruction == "Find the cheapest red kettle.\nStart at https://kettles.example/"
    assert [str(need) for need in found.missing][:2] == ["browser", "site kettles.example"]
    assert online_mind2web.read(tmp_path / "Online_Mind2Web.json") == [found]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ("{}", "not a list of tasks"),
        ("[]", "no tasks there"),
        ('[{"task_id": "a"}]', "task 0: "),
    ],
)
def test_what_is_not_the_file(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "Online_Mind2Web.json").write_text(text)
    with pytest.raises(ConfigError, match=said):
        online_mind2web.read(tmp_path)


def test_the_verdict_is_on_screenshots_that_show_something() -> None:
    said = [f"1. **Reasoning**: see 5 items\n2. **Score**: {score}" for score in (1, 3, 5, 2)]
    assert online_mind2web.key_screenshots(said) == [1, 2]
    assert len(online_mind2web.key_screenshots(["Score: 4"] * 80)) == 50
    with pytest.raises(VerifierError, match="screenshot 1"):
        online_mind2web.key_screenshots(["Score: 4", "It shows 3 kettles."])


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ('Thoughts: fine.\nStatus: "success"', 1.0),
        ("Thoughts: no success here.\n**Status**: failure", 0.0),
        ("Status: success or failure?\nStatus: failure", 0.0),
    ],
)
def test_the_verdict(said: str, reward: float) -> None:
    assert online_mind2web.score(said) == reward


def test_no_status_is_no_verdict() -> None:
    with pytest.raises(VerifierError):
        online_mind2web.score("success")
