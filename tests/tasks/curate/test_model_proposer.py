"""The model proposer against a provider that is really asked: what is asked, kept, counted and never asked twice."""

import json
from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from tasks.curate.draft import Labels
from tasks.curate.draft import Unusable
from tasks.curate.draft import write
from tasks.curate.model_proposer import TOPICS
from tasks.curate.model_proposer import ModelProposer
from tasks.curate.model_proposer import read_asked
from tasks.curate.wishes import Wish
from tasks.provider import Provider
from tests.support.provider import Fake
from tests.support.provider import provider
from tests.tasks.curate.test_answer import DRAFT
from tests.tasks.curate.test_answer import GOOD

WISH = Wish(task="logs-0001", seed="0-1", split="train", family="logs", level=2)
PRICES = {"prompt_usd": 10.0, "sampled_usd": 50.0}
COST = (1000 * 10 + 10 * 50) / 1e6


def proposing(fake: Fake, folder: Path, **fields: float) -> ModelProposer:
    given = {"base_url": fake.url, "model": "m-1", "key_env": "CURATE_KEY", "max_tokens": 300} | fields
    return ModelProposer(Provider.model_validate(given), folder)


def questions(fake: Fake) -> list[str]:
    return [body["messages"][-1]["content"] for body in fake.asked]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATE_KEY", "sk-very-secret")


async def test_what_was_asked_is_written_down_and_not_asked_again(tmp_path: Path) -> None:
    async with provider(lambda *_: json.dumps(GOOD)) as fake:
        for _ in range(2):
            assert await proposing(fake, tmp_path, **PRICES).propose(WISH, None) == DRAFT
    assert len(fake.asked) == 1
    assert TOPICS["logs"] in questions(fake)[0]
    asked = read_asked(tmp_path)["logs-0001"]
    assert (asked.model, asked.prompt_tokens, asked.sampled_tokens, asked.cost_usd) == ("m-1", 1000, 10, COST)
    assert "sk-very-secret" not in (tmp_path / "logs-0001.json").read_text()


async def test_an_unreadable_answer_is_refused_and_paid_for_once(tmp_path: Path) -> None:
    async with provider(lambda *_: "I would rather not.") as fake:
        for _ in range(2):
            with pytest.raises(Unusable, match="unreadable: the answer: Invalid JSON"):
                await proposing(fake, tmp_path).propose(WISH, None)
    assert len(fake.asked) == 1
    assert read_asked(tmp_path)["logs-0001"].cost_usd is None


async def test_a_cut_answer_is_refused(tmp_path: Path) -> None:
    cut = {"choices": [{"message": {"content": json.dumps(GOOD)}, "finish_reason": "length"}]}
    async with provider(lambda *_: cut) as fake:
        with pytest.raises(Unusable, match="unreadable: the answer was cut at max_tokens"):
            await proposing(fake, tmp_path).propose(WISH, None)
    assert read_asked(tmp_path)["logs-0001"].prompt_tokens is None  # it told none


async def test_a_refusal_stops_the_curation_in_the_providers_words(tmp_path: Path) -> None:
    async with provider(lambda *_: 401) as fake:
        with pytest.raises(ConfigError, match="endpoint: m-1: status 401: no, …"):
            await proposing(fake, tmp_path).propose(WISH, None)


async def test_the_budget_holds_across_executions(tmp_path: Path) -> None:
    async with provider(lambda *_: json.dumps(GOOD)) as fake:
        for number in range(2):
            proposer = proposing(fake, tmp_path, **PRICES, max_usd=1.5 * COST)
            await proposer.propose(WISH.model_copy(update={"task": f"logs-{number}"}), None)
        with pytest.raises(Unusable, match=r"out_of_budget: m-1: the limit of 0\.01575 USD is spent"):
            await proposing(fake, tmp_path, **PRICES, max_usd=1.5 * COST).propose(WISH, None)
    assert len(fake.asked) == 2


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
    async with provider(lambda *_: json.dumps(GOOD)) as fake:
        await proposing(fake, tmp_path / "asked").propose(wish, tmp_path / "set/logs-0001")
    (question,) = questions(fake)
    for part in ("100% of its attempts", "grep -c ERROR a.log", "a variant that is harder", '"a/b.txt":"x', "hard:"):
        assert part in question
