"""How a call is sampled: what the run says, within what fits, whatever the harness asked for.

The trainer computes log-probabilities of the whole distribution after the run's temperature, so a token sampled in
another way could not be trained on. What a harness asked for and did not get is a finding on the call, never silent.
"""

from collections.abc import Mapping
from typing import Any

from proxy_addons.conversation import Request
from proxy_addons.engine import Sampling
from proxy_addons.live import Limits

_OTHER = {
    "top_k_ignored": ("top_k", "topK"),
    "penalty_ignored": (
        *("frequency_penalty", "presence_penalty", "repetition_penalty"),
        *("frequencyPenalty", "presencePenalty"),
    ),
    "logit_bias_ignored": ("logit_bias",),
    "min_p_ignored": ("min_p",),
    "seed_ignored": ("seed",),
    "format_ignored": ("response_format", "output_format", "responseSchema", "responseJsonSchema", "responseMimeType"),
}
"""Finding → the fields of any dialect that ask for it; Gemini's are one level down, in `generationConfig`."""


def pinned(request: Request, limits: Limits, prompt_tokens: int, left: int | None, stop: tuple[int, ...]) -> Sampling:
    """The run's temperature, no top-p, and as many tokens as were asked for and fit.

    `left` is what remains of the rollout's tokens (None: no limit). `max_tokens` below 1 means that nothing fits.
    """
    asked = request.max_tokens if request.max_tokens is not None else limits.max_tokens
    room = [asked, limits.max_tokens, limits.max_model_len - prompt_tokens, *([] if left is None else [left])]
    return Sampling(max_tokens=min(room), temperature=limits.temperature, stop_token_ids=stop)


def not_as_asked(request: Request, body: Mapping[str, Any], limits: Limits) -> tuple[str, ...]:
    """Findings: what the harness asked of the sampling and did not get."""
    found = []
    if request.temperature is not None and request.temperature != limits.temperature:
        found.append("temperature_overridden")
    if request.top_p is not None and request.top_p != 1:
        found.append("top_p_overridden")
    if request.stop:
        found.append("stop_ignored")
    config = body.get("generationConfig") or body.get("generation_config")
    fields = {**body, **config} if isinstance(config, Mapping) else body
    for name, spellings in _OTHER.items():
        if any(_asks(key, fields.get(key)) for key in spellings):
            found.append(name)
    if "format_ignored" not in found and _asks("format", _within(fields, "text", "output_config").get("format")):
        found.append("format_ignored")
    one_call = _within(fields, "tool_choice").get("disable_parallel_tool_use") is True
    if one_call or fields.get("parallel_tool_calls") is False:
        found.append("parallel_calls_allowed")
    return tuple(found)


def _within(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The fields of these objects, those that are there."""
    objects = (fields.get(name) for name in names)
    return {key: value for found in objects if isinstance(found, Mapping) for key, value in found.items()}


def _asks(key: str, value: Any) -> bool:
    """Whether a field's value asks for anything: 0, null and empty do not, nor does a factor of 1 or plain text."""
    if key == "seed":
        return value is not None
    plain = value == "text/plain" or (isinstance(value, Mapping) and value.get("type") == "text")
    return bool(value) and not plain and not (key == "repetition_penalty" and value == 1)
