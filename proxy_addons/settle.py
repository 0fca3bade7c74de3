"""What the calls of a rollout were to each other, decided from the whole tree once the rollout is over."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any


def settle(calls: Sequence[Mapping[str, Any]]) -> dict[int, tuple[str, str]]:
    """Call number → (chain, status), decided when the rollout is over (cases O38, O39).

    `calls` are in order, each with `call`, `parent_call`, `whole_prefix` (keeps all tokens of its parent),
    `request_key`, `agent` and `status`. Of a request that an agent sent again, the answer that the harness went on
    with counts, or the last one where it went on with none; the others are "abandoned". A chain goes on through the
    first child of the same agent that counts and keeps its parent's tokens; every other call opens a chain.
    """
    status = {c["call"]: c["status"] for c in calls}
    agent = {c["call"]: c.get("agent") for c in calls}
    continued = {c["parent_call"] for c in calls if c["status"] == "ok"}
    same: dict[tuple[Any, ...], list[int]] = {}
    for c in calls:
        if c["status"] == "ok":
            same.setdefault((c["parent_call"], agent[c["call"]], c["request_key"]), []).append(c["call"])
    for twins in same.values():
        used = [call for call in twins if call in continued] or twins[-1:]
        status |= {call: "abandoned" for call in twins if call not in used}
    chain: dict[int, str] = {}
    taken: set[int] = set()
    for c in calls:
        parent = c["parent_call"]
        goes_on = parent in chain and parent not in taken and c["whole_prefix"] and status[c["call"]] == "ok"
        if goes_on and agent[parent] == agent[c["call"]]:
            taken.add(parent)
            chain[c["call"]] = chain[parent]
        else:
            chain[c["call"]] = f"c{len(set(chain.values()))}"
    return {call: (chain[call], status[call]) for call in chain}
