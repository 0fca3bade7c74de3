from typing import Any

import pytest

from proxy_addons.settle import settle
from proxy_addons.settle import side_calls


def call(number: int, parent: int | None = None, key: str | None = None, **more: Any) -> dict[str, Any]:
    row = {"call": number, "parent_call": parent, "whole_prefix": parent is not None, "status": "ok", "agent": None}
    return row | {"request_key": key or str(number)} | more


def test_a_history_that_only_grows_is_one_chain() -> None:
    assert settle([call(0), call(1, 0), call(2, 1)]) == dict.fromkeys(range(3), ("c0", "ok"))


def test_o38_interleaved_agents_are_chains_of_their_own() -> None:
    # A1, B1, A2, C1, B2, A3
    chains = settle([call(0), call(1), call(2, 0), call(3), call(4, 1), call(5, 2)])
    assert [chains[n][0] for n in range(6)] == ["c0", "c1", "c0", "c2", "c1", "c0"]


def test_agents_that_were_asked_the_same_are_not_one_agent_asked_twice() -> None:
    calls = [call(0, key="same", agent="a"), call(1, key="same", agent="b"), call(2, 0, agent="a"), call(3, agent="b")]
    assert settle(calls) == {0: ("c0", "ok"), 1: ("c1", "ok"), 2: ("c0", "ok"), 3: ("c2", "ok")}


def test_a_fork_leaves_its_parents_chain_to_the_parent() -> None:
    settled = settle([call(0), call(1, 0, agent="fork"), call(2, 0), call(3, 1, agent="fork")])
    assert [settled[n][0] for n in range(4)] == ["c0", "c1", "c0", "c1"]


@pytest.mark.parametrize("went_on_with", [1, 2])
def test_o39_of_a_re_asked_turn_the_one_that_was_used_counts(went_on_with: int) -> None:
    calls = [call(0), call(1, 0, "same"), call(2, 0, "same"), call(3, went_on_with)]
    settled = settle(calls)
    assert settled[went_on_with] == ("c0", "ok")
    assert settled[3 - went_on_with][1] == "abandoned"
    assert settled[3] == ("c0", "ok")


def test_o39_of_a_re_asked_last_turn_the_last_counts() -> None:
    settled = settle([call(0), call(1, 0, "same"), call(2, 0, "same")])
    assert settled[1][1] == "abandoned"
    assert settled[2] == ("c0", "ok")


def test_a_failed_call_takes_no_place_in_a_chain() -> None:
    settled = settle([call(0), call(1, 0, "same", status="error"), call(2, 0, "same")])
    assert settled[0] == ("c0", "ok")
    assert settled[2] == ("c0", "ok")
    assert settled[1][1] == "error"


def test_a_prompt_that_lost_its_parents_tokens_opens_a_chain() -> None:
    settled = settle([call(0), call(1, 0, whole_prefix=False), call(2, 1)])
    assert [settled[n][0] for n in range(3)] == ["c0", "c1", "c1"]


def test_o41_a_side_call_is_nobodys_twin_and_takes_no_place() -> None:
    quota = {"findings": ["side_call:quota"]}
    settled = settle([call(0), call(1, 0, "same", **quota), call(2, 0, "same"), call(3, 0, "same", **quota)])
    assert [settled[n] for n in range(4)] == [("c0", "ok"), ("c1", "ok"), ("c0", "ok"), ("c2", "ok")]


@pytest.mark.parametrize(
    ("tools", "more", "aside"),
    [
        ([True, False], {}, {1}),
        ([False, True], {}, {0}),
        ([False, False], {}, set()),
        ([True, False], {"agent": "a1"}, set()),
        ([True, False], {"findings": ["tools_withheld"]}, set()),
        ([True, False], {"findings": ["compaction_request"]}, set()),
        ([True, False], {"status": "error"}, set()),
    ],
)
def test_o41_calls_without_tools_beside_calls_with_tools(
    tools: list[bool], more: dict[str, Any], aside: set[int]
) -> None:
    calls = [call(n, offers_tools=offers, **{"findings": [], **more}) for n, offers in enumerate(tools)]
    assert side_calls(calls) == aside
