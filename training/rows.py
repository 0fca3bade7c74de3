"""Recorded calls → training rows. Only token ids that were sampled are trained, each in exactly one row.

A row is one chain of calls: the prompt that the first call saw, then what each call sampled and what the harness
answered. A call extends its parent's row if it is of the same chain and kept every token of its parent; otherwise it
opens a row whose prompt is what the model really saw, so that shared tokens are context there (mask 0). No text and no
tokenizer is involved, and rows are never padded or cut: they end at their last trained token.

A call that cannot be trained (not "ok", or with a fatal finding) stays in its row as context; a row that is too
long or too old is refused whole. Everything refused is counted in calls and in sampled tokens.
"""

import json
import math
from collections import Counter
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from proxy_addons.findings import fatal

Call = Mapping[str, Any]

FATAL = fatal("call")
"""Findings that make a call's own tokens unusable for training."""

POISON = fatal("chain")
"""Findings on a prompt that also make every later call of that conversation unusable (case O76)."""


SIDE_CALLS = ("side_call:quota", "side_call:warmup", "side_call:no_tools")
"""Findings of calls that are no turn of an agent (case O41; `proxy_addons.kinds`, `proxy_addons.settle`)."""


@dataclass(frozen=True)
class Row:
    """One training sequence. `ids`, `mask` and `logprobs` have one entry per token; `mask` is 1 at sampled tokens to
    be trained and `logprobs` (natural log, as recorded) is 0.0 elsewhere. `calls` and `versions` (of the weights) have
    one entry per trained call. The first token is never trained."""

    rollout: str
    group: str
    ids: Sequence[int]
    mask: Sequence[int]
    logprobs: Sequence[float]
    calls: tuple[int, ...]
    versions: tuple[int, ...]
    temperature: float = 1.0
    importance: Sequence[float] | None = None
    """Importance weight of each token (`off_policy`); None: 1."""
    reference: Sequence[float] | None = None
    """The reference model's log-probability of each token; None: no KL term."""
    images: Sequence[str] = ()
    """The images that the ids show, in order: their files without the extension."""

    @property
    def trained_tokens(self) -> int:
        return sum(self.mask)

    @property
    def weight_version(self) -> int:
        """The oldest weights that sampled a trained token (case O58)."""
        return min(self.versions)


@dataclass
class RowReport:
    """What became of the calls. `refused` and `refused_tokens` count calls and their sampled tokens by reason."""

    rows: int = 0
    trained_tokens: int = 0
    prefix_breaks: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    refused_tokens: Counter[str] = field(default_factory=Counter)

    def refuse(self, reason: str, tokens: int) -> None:
        self.refused[reason] += 1
        self.refused_tokens[reason] += tokens

    @property
    def refused_share(self) -> float:
        """Share of the sampled tokens that is not trained; 0.0 if none was sampled."""
        lost = self.refused_tokens.total()
        return lost / (lost + self.trained_tokens) if lost else 0.0


@dataclass(eq=False)
class _Draft:
    """A row while it grows. `tail` is the call at its end, `trained` the (call, tokens, version) of trained calls."""

    chain: str | None
    tail: int
    ids: list[int]
    mask: list[int] = field(init=False)
    logprobs: list[float] = field(init=False)
    trained: list[tuple[int, int, int]] = field(default_factory=list)
    images: Sequence[str] = ()  # of the prompt of the last trained call
    temperature: float | None = None
    poison: str | None = None

    def __post_init__(self) -> None:
        self.mask = [0] * len(self.ids)
        self.logprobs = [0.0] * len(self.ids)

    def append(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Add tokens: trained ones if `logprobs` are given, else context."""
        self.ids += ids
        self.mask += [0 if logprobs is None else 1] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs


def build_rows(
    calls: Iterable[Call],
    *,
    max_row_tokens: int,
    weight_version: int | None = None,
    max_staleness: int = 0,
    need_logprobs: bool = True,
    leave_out: Collection[str] = SIDE_CALLS,
    unseen: Callable[[Row], str | None] | None = None,
) -> tuple[list[Row], RowReport]:
    """The rows of all rollouts in `calls` (rows of `records.CALLS`), in the order of the calls.

    A row is refused if it has more than `max_row_tokens` tokens, or, where `weight_version` is given, if its oldest
    token was sampled more than `max_staleness` versions before that. `need_logprobs=False` is for SFT: calls without
    usable log-probabilities are trained, and the rows' `logprobs` are all 0.0. A call with a finding of `leave_out` is
    not trained. `unseen` says why a row's images cannot be shown to the policy; without it none can, and their calls
    are refused.
    """
    report = RowReport()
    by_rollout: dict[str, list[Call]] = {}
    for call in calls:
        by_rollout.setdefault(call["rollout"], []).append(call)
    rows = []
    for own in by_rollout.values():
        for draft in _drafts(sorted(own, key=lambda c: c["call"]), need_logprobs, leave_out, unseen is None, report):
            row = _finish(draft, own[0])
            reason = None
            if len(row.ids) > max_row_tokens:
                reason = "row_too_long"
            elif weight_version is not None and weight_version - row.weight_version > max_staleness:
                reason = "stale"
            elif unseen is not None:
                reason = unseen(row)
            if reason is None:
                rows.append(row)
                report.rows += 1
                report.trained_tokens += row.trained_tokens
            else:
                for _, tokens, _ in draft.trained:
                    report.refuse(reason, tokens)
    return rows, report


def _drafts(
    calls: list[Call], need_logprobs: bool, leave_out: Collection[str], blind: bool, report: RowReport
) -> list[_Draft]:
    """The chains of one rollout that have something to train. A rollout whose record is broken has none."""
    drafts: list[_Draft] = []
    # Where each call's prompt and sampled tokens stand: the first `end` ids of a draft, which only ever grows.
    place: dict[int, tuple[_Draft, int]] = {}
    for call in calls:
        parent, end = place.get(call["parent_call"], (None, 0))
        prefix, sampled = call["prompt_prefix_len"] or 0, call["sampled_ids"] or []
        if call["call"] in place or prefix > end or (call["parent_call"] is not None and parent is None):
            for each in calls:
                report.refuse("broken_record", len(each["sampled_ids"] or []))
            return []
        delta = call["prompt_delta_ids"] or []
        whole = parent is not None and prefix == end
        ok = call["status"] == "ok"
        if parent is not None and ok and whole and parent.tail == call["parent_call"] and parent.chain == call["chain"]:
            draft = parent
            draft.append(delta)
        else:
            draft = _Draft(call["chain"], call["call"], [*(parent.ids[:prefix] if parent else []), *delta])
            draft.poison = parent.poison if parent is not None and prefix > 0 else None
            drafts.append(draft)
            report.prefix_breaks += ok and parent is not None and not whole
        draft.tail = call["call"]
        draft.poison = draft.poison or min(POISON.intersection(call["findings"] or ()), default=None)
        reason = _why_not(call, draft, need_logprobs, leave_out, blind)
        if reason is None:
            draft.images = call.get("images") or ()
            draft.append(sampled, call["sampled_logprobs"] if need_logprobs else [0.0] * len(sampled))
            draft.trained.append((call["call"], len(sampled), call["weight_version"] or 0))
        else:
            draft.append(sampled)
            report.refuse(reason, len(sampled))
        place[call["call"]] = draft, len(draft.ids)
    return [draft for draft in drafts if draft.trained]


def _why_not(call: Call, draft: _Draft, need_logprobs: bool, leave_out: Collection[str], blind: bool) -> str | None:
    """Why the tokens of `call`, about to be added to `draft`, cannot be trained; None if they can."""
    ids, logprobs = call["sampled_ids"], call["sampled_logprobs"] or []
    findings = frozenset(call["findings"] or ())
    if call["status"] != "ok":
        return str(call["status"])
    if unwanted := sorted(findings.intersection(leave_out)):
        return unwanted[0]
    if draft.poison:
        return draft.poison
    if not ids or "ids_missing" in findings:
        return "ids_missing"
    if not draft.ids:
        return "no_prompt"
    if blind and call.get("images"):
        return "images_in_prompt"  # there are no pixel values for their tokens
    if not need_logprobs:
        return None
    if unusable := sorted(findings & FATAL):
        return unusable[0]
    if len(logprobs) != len(ids):
        return "logprobs_misaligned"
    if not all(value is not None and math.isfinite(value) for value in logprobs):
        return "logprob_not_finite"
    return _sampling_problem(call, draft)


def _sampling_problem(call: Call, draft: _Draft) -> str | None:
    """Why the trainer could not reproduce the recorded log-probabilities. One row has one temperature."""
    sampling = json.loads(call["sampling"] or "{}")
    temperature = sampling.get("temperature", 1.0)
    if temperature <= 0:
        return "greedy"
    if sampling.get("top_p", 1.0) != 1.0:
        return "top_p"
    if temperature != 1.0 and call["logprob_kind"] != "processed":
        return "logprobs_before_temperature"
    if draft.temperature is None:
        draft.temperature = temperature
    return None if draft.temperature == temperature else "temperature_changed"


def _finish(draft: _Draft, call: Call) -> Row:
    end = len(draft.mask) - draft.mask[::-1].index(1)
    return Row(
        rollout=call["rollout"],
        group=f"{call['run']}/{call['epoch']}/{call['task']}",
        ids=draft.ids[:end],
        mask=draft.mask[:end],
        logprobs=draft.logprobs[:end],
        calls=tuple(number for number, _, _ in draft.trained),
        versions=tuple(version for _, _, version in draft.trained),
        temperature=draft.temperature or 1.0,
        images=tuple(draft.images),
    )
