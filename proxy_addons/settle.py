"""What the calls of a rollout were to each other, decided from the whole tree once the rollout is over."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

TURNS_ALL_THE_SAME = frozenset({"compaction_request", "tools_withheld"})
"""Findings of calls that offer no tools and are turns of an agent."""


def settle(calls: Sequence[Mapping[str, Any]]) -> dict[int, tuple[str, str]]:
    """Call number → (chain, status), decided when the rollout is over (cases O38, O39).

    `calls` are in order, each with `call`, `parent_call`, `whole_prefix` (keeps all tokens of its parent),
    `request_key`, `agent` and `status`. Of a request that an agent sent again, the answer that the harness went on
    with counts, or the last one where it went on with none; the others are "abandoned". A chain goes on through the
    first child of the same agent that counts and keeps its parent's tokens; every other call opens a chain. A side call
    (case O41) is nobody's twin and takes no place in a chain.
    """
    aside = {c["call"] for c in calls if any(f.startswith("side_call:") for f in c.get("findings", ()))}
    status = {c["call"]: c["status"] for c in calls}
    agent = {c["call"]: c.get("agent") for c in calls}
    continued = {c["parent_call"] for c in calls if c["status"] == "ok"}
    same: dict[tuple[Any, ...], list[int]] = {}
    for c in calls:
        if c["status"] == "ok" and c["call"] not in aside:
            same.setdefault((c["parent_call"], agent[c["call"]], c["request_key"]), []).append(c["call"])
    for twins in same.values():
        used = [call for call in twins if call in continued] or twins[-1:]
        status |= {call: "abandoned" for call in twins if call not in used}
    chain: dict[int, str] = {}
    taken: set[int] = set()
    for c in calls:
        parent = c["parent_call"]
        goes_on = parent in chain and parent not in taken and c["whole_prefix"] and status[c["call"]] == "ok"
        if goes_on and agent[parent] == agent[c["call"]] and c["call"] not in aside:
            taken.add(parent)
            chain[c["call"]] = chain[parent]
        else:
            chain[c["call"]] = f"c{len(set(chain.values()))}"
    return {call: (chain[call], status[call]) for call in chain}


def side_calls(calls: Sequence[Mapping[str, Any]]) -> set[int]:
    """The calls that are no turn of an agent: they offer the policy no tools, where the rollout's agents have tools.

    That is how harnesses ask for a title, a summary of a page or the next speaker (case O41). Not among them: the call
    of a declared sub-agent (`agent`), one that asks for a compaction, one whose tools were withheld for this turn, and
    any call of a harness that never offers a tool. Each call has `call`, `status`, `agent`, `findings` and
    `offers_tools`.
    """
    without = [c for c in calls if not c.get("offers_tools", True)]
    if not any(c["status"] == "ok" for c in calls if c not in without):
        return set()
    return {c["call"] for c in without if not (c.get("agent") or TURNS_ALL_THE_SAME.intersection(c["findings"]))}
