"""The model proposer against a provider that is really asked: what is asked, kept, counted and never asked twice."""

import json
from pathlib import Path

import pytest

from tasks.curate.draft import Labels
from tasks.curate.draft import Unusable
from tasks.curate.draft import write
from tasks.curate.endpoint import Endpoint
from tasks.curate.model_proposer import TOPICS
from tasks.curate.model_proposer import opened
from tasks.curate.model_proposer import read_asked
from tasks.curate.wishes import Wish
from tests.tasks.curate.provider import Provider
from tests.tasks.curate.provider import serving
from tests.tasks.curate.test_answer import DRAFT
from tests.tasks.curate.test_answer import GOOD

WISH = Wish(task="logs-0001", seed="0-1", split="train", family="logs", level=2)
PRICES = {"prompt": 10.0, "sampled": 50.0}
COST = (100 * 10 + 20 * 50) / 1e6


def endpoint(provider: Provider) -> Endpoint:
    return Endpoint("openai", provider.url, "m-1", "CURATE_KEY", 300)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATE_KEY", "sk-very-secret")


async def test_what_was_asked_is_written_down_and_not_asked_again(tmp_path: Path) -> None:
    provider = Provider(lambda *_: json.dumps(GOOD))
    async with serving(provider):
        for _ in range(2):
            async with opened(endpoint(provider), tmp_path, 2, PRICES) as proposer:
                assert await proposer.propose(WISH, None) == DRAFT
    assert len(provider.asked) == 1
    assert TOPICS["logs"] in provider.questions[0]
    asked = read_asked(tmp_path)["logs-0001"]
    assert (asked.model, asked.prompt_tokens, asked.sampled_tokens, asked.cost_usd) == ("m-1", 100, 20, COST)
    assert "sk-very-secret" not in (tmp_path / "logs-0001.json").read_text()


async def test_an_unreadable_answer_is_refused_and_paid_for_once(tmp_path: Path) -> None:
    provider = Provider(lambda *_: "I would rather not.")
    async with serving(provider), opened(endpoint(provider), tmp_path, 2) as proposer:
        for _ in range(2):
            with pytest.raises(Unusable, match="unreadable: the answer: Invalid JSON"):
                await proposer.propose(WISH, None)
    assert len(provider.asked) == 1
    assert read_asked(tmp_path)["logs-0001"].cost_usd is None


async def test_a_cut_answer_is_refused(tmp_path: Path) -> None:
    provider = Provider(lambda *_: json.dumps(GOOD), finish="length")
    async with serving(provider), opened(endpoint(provider), tmp_path, 2) as proposer:
        with pytest.raises(Unusable, match="unreadable: the answer was cut at max_tokens"):
            await proposer.propose(WISH, None)


async def test_the_budget_holds_across_executions(tmp_path: Path) -> None:
    provider = Provider(lambda *_: json.dumps(GOOD))
    async with serving(provider):
        for number in range(2):
            async with opened(endpoint(provider), tmp_path, 2, PRICES, 1.5 * COST) as proposer:
                await proposer.propose(WISH.model_copy(update={"task": f"logs-{number}"}), None)
        async with opened(endpoint(provider), tmp_path, 2, PRICES, 1.5 * COST) as proposer:
            with pytest.raises(Unusable, match=r"out_of_budget: 0\.00 USD are spent, of 0\.003"):
                await proposer.propose(WISH, None)
    assert len(provider.asked) == 2


async def test_a_refinement_shows_the_task_and_what_was_tried(tmp_path: Path) -> None:
    write(DRAFT, Labels("logs", "train", 2), tmp_path / "set/logs-0001")
    wish = WISH.model_copy(
        update={
            "task": "logs-0001-r1",
            "level": 3,
            "parent": "logs-0001",
            "direction": "harder",
            "pass_rate": 1.0,
            "transcript": "calls Bash: grep -c ERROR a.log",
        }
    )
    provider = Provider(lambda *_: json.dumps(GOOD))
    async with serving(provider), opened(endpoint(provider), tmp_path / "asked", 2) as proposer:
        await proposer.propose(wish, tmp_path / "set/logs-0001")
    (question,) = provider.questions
    for part in ("100% of its attempts", "grep -c ERROR a.log", "a variant that is harder", '"a/b.txt":"x', "hard:"):
        assert part in question
