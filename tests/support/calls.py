"""Synthetic records in the real schema: the calls of a rollout as the proxy writes them, and rollout rows."""

from collections.abc import Sequence
from typing import Any

from proxy_addons import records


class Recording:
    """Builds one rollout's calls. `texts[n]` is call n's prompt and sampled tokens, kept apart from the deltas so that
    tests can compare rows with what the model really saw."""

    def __init__(self, sample: int = 0, task: str = "t", epoch: int = 1) -> None:
        self.who = {"run": "r", "epoch": epoch, "task": task, "sample": sample, "try": 0}
        self.rollout = f"r-e{epoch:03}-{task}-s{sample:02}-t0"
        self.texts: list[list[int]] = []
        self._rows: list[dict[str, Any]] = []

    def call(
        self,
        parent: int | None,
        delta: Sequence[int],
        sampled: Sequence[int],
        *,
        keep: int | None = None,
        **fields: Any,
    ) -> int:
        """Add a call that goes on from `parent` with `delta`; `keep` of the parent's tokens (all if None)."""
        before = [] if parent is None else self.texts[parent]
        kept = before if keep is None else before[:keep]
        number = len(self._rows)
        self.texts.append([*kept, *delta, *sampled])
        self._rows.append(
            self.who
            | {
                "rollout": self.rollout,
                "call": number,
                "chain": "c0",
                "parent_call": parent,
                "weight_version": 0,
                "status": "ok",
                "prompt_delta_ids": list(delta),
                "prompt_prefix_len": len(kept),
                "sampled_ids": list(sampled),
                "sampled_logprobs": [-1.0] * len(sampled),
                "logprob_kind": "processed",
                "sampling": '{"temperature":1.0,"top_p":1.0}',
                "findings": [],
            }
            | fields
        )
        return number

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The rows as a reader of the Parquet file gets them."""
        return records.table(self._rows, records.CALLS).to_pylist()

    def ended(self, reward: float | None, **fields: Any) -> dict[str, Any]:
        """The rollout's row in the table of rollouts."""
        row = self.who | {"rollout": self.rollout, "kind": "train", "complete": True, "reward": reward}
        row |= {"group": f"r-e{self.who['epoch']:03}-{self.who['task']}"} | fields
        return records.table([row], records.ROLLOUTS).to_pylist()[0]
