"""A model as judge: votes in both orders, kept, and no verdict where it gives none."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from proxy_addons.errors import ConfigError
from proxy_addons.errors import VerifierError
from tasks.rewards.rubric import MAX_EVIDENCE
from tasks.rewards.rubric import Judge
from tasks.rewards.rubric import JudgeConfig
from tasks.rewards.rubric import gather
from tasks.rewards.rubric import read_rubric
from tasks.verify import verify
from tests.support.provider import Fake
from tests.support.provider import provider
from tests.tasks.boxes import here

RUBRIC = """
evidence = ["answer.txt", "src/*.py"]
[[criterion]]
ask = "It names the file."
weight = 3.0
[[criterion]]
ask = "It is polite."
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    for name in ("tests", "environment"):
        (folder / name).mkdir(parents=True)
    (folder / "instruction.md").write_text("Say which file it is.")
    (folder / "tests/rubric.toml").write_text(RUBRIC)
    (folder / "tests/test.sh").write_text("echo $(cat score) > $VERIFIER_REWARD_FILE")
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "answer.txt").write_text("It is a.txt.")
    (folder / "score").write_text("1")
    return folder


def judge(fake: Fake, tmp_path: Path, votes: int = 3, **fields: Any) -> Judge:
    given = {"base_url": fake.url, "model": "m", "votes": votes} | fields
    return Judge(JudgeConfig.model_validate(given), tmp_path / "cache")


def names_the_file(_: str, user: str) -> str:
    """Finds the first criterion met, wherever it stands, and the other one not."""
    listed = re.findall(r"^(\d)\. (.*)$", user.split("Criteria:")[1], re.M)
    return json.dumps({number: "yes" if "file" in ask else "no" for number, ask in listed})


async def test_criteria_are_weighed_and_listed_both_ways(task: Path, workspace: Path, tmp_path: Path) -> None:
    async with provider(names_the_file) as fake:
        assert await judge(fake, tmp_path, 2).score(task, workspace) == 0.75
        orders = {
            user.index("names") < user.index("polite") for user in (b["messages"][1]["content"] for b in fake.asked)
        }
        assert orders == {True, False}
        assert "It is a.txt." in fake.asked[0]["messages"][1]["content"]


async def test_who_favours_the_first_place_favours_both_alike(task: Path, workspace: Path, tmp_path: Path) -> None:
    async with provider(lambda _, __: '{"1": "yes", "2": "no"}') as fake:
        assert await judge(fake, tmp_path, 2).score(task, workspace) == 0.5


async def test_what_was_judged_is_not_paid_again(task: Path, workspace: Path, tmp_path: Path) -> None:
    async with provider(names_the_file) as fake:
        assert [await judge(fake, tmp_path).score(task, workspace) for _ in range(2)] == [0.75, 0.75]
        assert len(fake.asked) == 3
        (workspace / "answer.txt").write_text("It is b.txt.")
        await judge(fake, tmp_path).score(task, workspace)
        assert len(fake.asked) == 6


@pytest.mark.parametrize("said", ["yes", '{"1": "yes"}', '{"1": "yes", "2": "maybe"}', '{"1": true, "2": false}', 401])
async def test_an_answer_that_decides_nothing_is_no_verdict(
    said: str | int, task: Path, workspace: Path, tmp_path: Path
) -> None:
    async with provider(lambda _, __: said) as fake:
        with pytest.raises(VerifierError, match="judge: "):
            await judge(fake, tmp_path, 1).score(task, workspace)
    assert not list((tmp_path / "cache").rglob("*.json"))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("rule", "score", "reward", "votes"),
    [
        ('outcome = "rubric"', "0", 0.75, 3),
        ("weights = {reward = 1.0, rubric = 1.0}", "1", 0.875, 3),
        ("weights = {reward = 1.0, rubric = 1.0}", "0", 0.0, 0),  # below the gate nobody is asked
    ],
)
async def test_the_rubric_is_a_part_of_the_reward(
    rule: str, score: str, reward: float, votes: int, task: Path, workspace: Path, tmp_path: Path
) -> None:
    (task / "task.toml").write_text(f"[metadata.reward]\n{rule}\n")
    (workspace / "score").write_text(score)
    async with provider(names_the_file) as fake:
        verdict = await verify(task, workspace, 15, here("bubblewrap"), judge=judge(fake, tmp_path))
        assert (verdict.reward, verdict.error_class, len(fake.asked)) == (reward, None, votes)


@pytest.mark.timeout(120)
async def test_a_judge_that_is_away_is_no_verdict_and_none_at_all_is_refused(
    task: Path, workspace: Path, tmp_path: Path
) -> None:
    (task / "task.toml").write_text("[metadata.reward]\nweights = {reward = 1.0, rubric = 1.0}\n")
    async with provider(lambda _, __: 401) as fake:
        verdict = await verify(task, workspace, 15, here("bubblewrap"), judge=judge(fake, tmp_path))
    assert (verdict.reward, verdict.error_class) == (None, "VerifierError")
    assert "judge: m: status 401" in verdict.reason
    with pytest.raises(ConfigError, match="no judge is configured"):
        await verify(task, workspace, 15, here("bubblewrap"))


def test_evidence_follows_no_link_and_is_cut_in_the_middle(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the expected answer")
    (workspace / "link.txt").symlink_to(tmp_path / "secret")
    (workspace / "out").symlink_to(tmp_path)
    found = gather(workspace, ["*.txt", "out/secret", "none"])
    assert "the expected answer" not in found
    assert "--- none: no such file" in found
    (workspace / "answer.txt").write_text("a" * 2 * MAX_EVIDENCE)
    assert MAX_EVIDENCE < len(gather(workspace, ["answer.txt"])) < MAX_EVIDENCE + 100


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("evidence = []\n", "evidence: List should have at least 1 item"),
        ("criterion = []", "criterion: List should have at least 1 item"),
        ("evidence = ['../x']\n[[criterion]]\nask = 'a'", "must lie in the workspace"),
        ("[[criterion]]\nask = 'a'\nweight = 0.0", "criterion.0.weight"),
        ("= 1", "cannot be read"),
    ],
)
def test_a_rubric_that_cannot_be_meant_is_told(text: str, problem: str, task: Path) -> None:
    (task / "tests/rubric.toml").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_rubric(task)
    (task / "tests/rubric.toml").unlink()
    with pytest.raises(ConfigError, match="is missing"):
        read_rubric(task)
