"""Every finding: a stable code for what was noticed about a call, a conversation or a rollout, and what it means.

A code may carry a detail after a colon (`unknown_block:video`); all details of a code share one entry. Severity:

* fatal: the `scope` is kept out of training. "call": the tokens that this call sampled. "chain": those and all that
  later calls of the conversation sample.
* warning: something was lost or went wrong; what was sampled is still true and is trained.
* info: worth knowing.

The severity of a code that is not here is "warning": a run does not stop for it, a test does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from typing import get_args

Severity = Literal["fatal", "warning", "info"]
Scope = Literal["call", "chain", "rollout"]

SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True)
class Finding:
    """What a code stands for. `meaning` is one sentence for people."""

    severity: Severity
    scope: Scope
    meaning: str


FINDINGS: Mapping[str, Finding] = {
    # what the engine gave
    "ids_missing": Finding("fatal", "call", "The engine gave no token ids, or not as many as it says it sampled."),
    "logprobs_misaligned": Finding("fatal", "call", "The log-probabilities do not pair with the sampled ids."),
    "logprob_not_finite": Finding("fatal", "call", "A log-probability is missing, infinite or not a number."),
    "certain_tokens": Finding(
        "fatal", "call", "Every log-probability is exactly 0: the engine is greedy or does not compute them."
    ),
    "weight_version_changed": Finding("fatal", "call", "The weights changed while the reply was being sampled."),
    "engine_failed": Finding("warning", "call", "The policy server was away or broken; the rollout is tried again."),
    "prompt_ids_differ": Finding(
        "fatal", "call", "The engine expanded the prompt's images to other tokens than the recorded ones."
    ),
    # what the policy said
    "truncated": Finding("warning", "call", "The reply was cut at its limit of tokens."),
    "empty_reply": Finding("warning", "call", "The reply holds neither text nor a tool call."),
    "tool_call_unreadable": Finding("warning", "call", "A tool call could not be parsed and was passed on as text."),
    "reasoning_open": Finding("warning", "call", "The reply ended before its reasoning did."),
    "retokenised": Finding(
        "info", "call", "The sampled text encodes to other ids than the sampled ones, which are what is kept."
    ),
    # how the call stands to those before
    "prefix_break": Finding(
        "info", "chain", "The template rewrites earlier turns, so the call opens a training row of its own."
    ),
    "control_token_in_content": Finding(
        "fatal", "chain", "Text from outside became a control token of the model in the prompt."
    ),
    # what the harness asked for
    "unknown_block": Finding("warning", "call", "A content block of an unknown type became a placeholder."),
    "unknown_item": Finding("warning", "call", "An input item of an unknown type became a placeholder."),
    "hosted_tool_dropped": Finding("info", "call", "A tool that the provider would run itself is not offered here."),
    "temperature_overridden": Finding("info", "call", "The harness asked for another temperature than the run's."),
    "top_p_overridden": Finding("info", "call", "The harness asked for top-p sampling and got none."),
    "stop_ignored": Finding("warning", "call", "The harness asked for stop strings; the policy stops by itself."),
    "top_k_ignored": Finding("info", "call", "The harness asked for top-k sampling and got none."),
    "penalty_ignored": Finding("info", "call", "The harness asked for a repetition penalty and got none."),
    "logit_bias_ignored": Finding("warning", "call", "The harness asked for a logit bias and got none."),
    "min_p_ignored": Finding("info", "call", "The harness asked for min-p sampling and got none."),
    "seed_ignored": Finding("info", "call", "The harness asked for a seed; the run's own sampling went on."),
    "format_ignored": Finding("warning", "call", "The harness asked for a format of the reply; the policy was free."),
    "parallel_calls_allowed": Finding("info", "call", "The harness wanted one tool call at most; the policy was free."),
    "tool_choice_ignored": Finding("warning", "call", "The harness wanted to force a tool call; the policy was free."),
    "tools_withheld": Finding("info", "call", "The harness offered its tools but allowed none for this call."),
    # what kind of call it is (`kinds`, `settle`)
    "side_call": Finding(
        "info", "call", "No turn of an agent: a title, a warm-up, a quota check; left out of training by default."
    ),
    "compaction_request": Finding("info", "call", "The harness asks the policy to sum up its history."),
    "compaction": Finding("info", "chain", "The harness had cut or summed up its history before this call."),
    "tool_call_unanswered": Finding("info", "call", "A tool call in the history has no result, and turns follow it."),
    # how the call ended
    "out_of_calls": Finding(
        "info", "call", "The rollout's calls were used up; the answer was a stop that nobody sampled."
    ),
    "out_of_tokens": Finding(
        "info", "call", "The rollout's tokens were used up; the reply was cut, or was a stop that nobody sampled."
    ),
    "harness_went_away": Finding("info", "call", "The harness hung up before the reply was sampled."),
    "not_delivered": Finding("info", "call", "The harness hung up before it had the whole reply."),
    "bad_request": Finding("warning", "call", "The request could not be read and was refused with 400."),
    "context_length": Finding("info", "call", "The prompt is longer than the policy's context and was refused."),
    "unauthorized": Finding("warning", "call", "The request did not show the rollout's key and was refused with 401."),
    "not_found": Finding("info", "call", "The request asked for something that is not served."),
    "too_large": Finding("warning", "call", "The request's body is larger than the proxy takes."),
    "budget": Finding("info", "call", "A budget of the rollout is used up and the call was refused with 429."),
    "overloaded": Finding("warning", "call", "The policy server is away; the call was answered with 529."),
    "internal": Finding("warning", "call", "The proxy failed at the call and answered 500."),
    # the egress port
    "egress_refused": Finding("warning", "rollout", "The sandbox asked for this host, which it may not reach."),
    "egress_passed": Finding(
        "info", "rollout", "The sandbox reached this host, as its task allows; what, is not recorded."
    ),
    # the rollout's group (tasks/deadline.py)
    "group_deadline": Finding(
        "warning", "rollout", "It was ended because half of its group was done long before it; it has no reward."
    ),
    # a benchmark's services (tasks/beside.py)
    "service_died": Finding(
        "warning", "rollout", "A service broke at the agent's calls: tried again, and 0 where it broke in a retry too."
    ),
    # the verifier (tasks/verify.py)
    "changed": Finding("warning", "rollout", "The agent changed this file of the tests; the original was run."),
    "planted": Finding("warning", "rollout", "The agent left this file, which could steer tests; they ran without."),
    "link out of the workspace": Finding("warning", "rollout", "The agent left this link; the tests ran without it."),
    "special file": Finding("warning", "rollout", "The agent left this device or pipe; the tests ran without it."),
    "verdict file in the workspace": Finding("warning", "rollout", "The agent wrote a verdict itself; it was ignored."),
}

_UNKNOWN = Finding("warning", "rollout", "Not a code that this version knows.")


def lookup(code: str) -> Finding:
    """What `code`, with or without a detail, stands for."""
    return FINDINGS.get(code.split(":", 1)[0], _UNKNOWN)


def fatal(scope: Scope) -> frozenset[str]:
    """The codes that keep this much out of training."""
    return frozenset(code for code, found in FINDINGS.items() if found.severity == "fatal" and found.scope == scope)


def by_severity(counts: Mapping[str, int]) -> dict[Severity, dict[str, int]]:
    """Counts by severity and code, the worst first and in each the most frequent; details are added up."""
    found: dict[Severity, dict[str, int]] = {severity: {} for severity in SEVERITIES}
    for code, count in counts.items():
        own = found[lookup(code).severity]
        name = code.split(":", 1)[0]
        own[name] = own.get(name, 0) + count
    return {severity: dict(sorted(own.items(), key=lambda item: -item[1])) for severity, own in found.items() if own}
