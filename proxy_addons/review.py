"""What is looked for in the calls of a rollout once it is over and nobody waits for it: run it in a thread."""

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from proxy_addons.rendering import Rendering


def review(row: Mapping[str, Any], rendering: Rendering) -> Iterator[str]:
    """The further findings of a `calls` row."""
    ids, logprobs = row.get("sampled_ids"), row.get("sampled_logprobs")
    if not ids:
        return
    # A scripted engine says 0 and means it. Of a policy that really is certain nothing is lost: it has no gradient.
    if logprobs and not any(logprobs) and None not in logprobs and row.get("logprob_kind") != "scripted":
        yield "certain_tokens"
    if rendering.encode_again(ids) != list(ids):
        yield "retokenised"
