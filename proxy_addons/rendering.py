"""Between the conversation form and token ids, through the `renderers` package.

Text that came from a file or a tool never becomes a control token: the tokenizer splits special tokens found in text
(case O76), and what slips through (a model whose control tokens are not marked special) is found and reported.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from renderers import Renderer
from renderers import RendererConfig
from renderers import create_renderer
from renderers.base import RenderedTokens
from renderers.base import ToolCallParseStatus
from transformers import AutoTokenizer

from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from proxy_addons.errors import ConfigError
from proxy_addons.records import to_json

_CONFIGS: TypeAdapter[Any] = TypeAdapter(RendererConfig)
_BY_MODEL_TYPE = {"qwen3": "qwen3", "qwen3_moe": "qwen3", "qwen3_vl": "qwen3-vl"}


@dataclass(frozen=True)
class Parsed:
    """A sampled turn read back. `findings` names what could not be read as the policy meant it."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    findings: tuple[str, ...]


class Rendering:
    """One model's template: messages → ids and ids → message."""

    def __init__(self, renderer: Renderer, control_ids: frozenset[int], tokenizer: Any) -> None:
        self.renderer = renderer
        self._tokenizer = tokenizer
        self.stop_token_ids = tuple(renderer.get_stop_token_ids())
        self._control = control_ids

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[list[int], tuple[str, ...]]:
        """The prompt from nothing, ready for the assistant's turn, with findings."""
        rendered = self.renderer.render(
            [_wire(m) for m in messages], tools=[_tool(t) for t in tools] or None, add_generation_prompt=True
        )
        return list(rendered.token_ids), self._forged(rendered, 0)

    def extend(
        self, prompt: list[int], sampled: Sequence[int], new: Sequence[Message], tools: Sequence[Tool]
    ) -> tuple[list[int], tuple[str, ...]] | None:
        """The next prompt, which starts with `prompt + sampled` untouched; None where the template rewrites history."""
        rendered = self.renderer.bridge_to_next_turn(
            prompt, list(sampled), [_wire(m) for m in new], tools=[_tool(t) for t in tools] or None
        )
        if rendered is None:
            return None
        ids = list(rendered.token_ids)
        base = len(prompt) + len(sampled)
        if ids[: len(prompt)] != prompt or ids[len(prompt) : base] != list(sampled):
            return None
        return ids, self._forged(rendered, base)

    def parse(self, sampled: Sequence[int], prompt: list[int], tools: Sequence[Tool], call_prefix: str) -> Parsed:
        """The assistant turn in `sampled`. A tool call that cannot be read stays visible as text."""
        parsed = self.renderer.parse_response(list(sampled), tools=[_tool(t) for t in tools] or None, prompt_ids=prompt)
        calls: list[ToolCall] = []
        broken: list[str] = []
        for attempt in parsed.tool_calls:
            arguments = _arguments(attempt.arguments) if attempt.status == ToolCallParseStatus.OK else None
            if arguments is None or not isinstance(attempt.name, str):
                broken.append(attempt.raw)
            else:
                calls.append(ToolCall(f"{call_prefix}_{len(calls)}", attempt.name, arguments))
        content = "\n".join(filter(None, [parsed.content, *broken]))
        if not content.strip():  # Claude Code drops such a text when it sends the turn back
            content = ""
        findings = []
        if broken:
            findings.append("tool_call_unreadable")
        if not content and not calls:
            findings.append("empty_reply")
        if parsed.reasoning_complete is False:
            findings.append("reasoning_open")
        return Parsed(content, parsed.reasoning_content or "", tuple(calls), tuple(findings))

    def encode_again(self, ids: Sequence[int]) -> list[int]:
        """What the text of `ids` encodes to, control tokens kept as they are. Never for training."""
        again: list[int] = []
        for control, run in groupby(ids, self._control.__contains__):
            part = list(run)
            again += part if control else self._tokenizer.encode(self._tokenizer.decode(part), add_special_tokens=False)
        return again

    def _forged(self, rendered: RenderedTokens, start: int) -> tuple[str, ...]:
        """A finding if a control token lies in text that the policy did not write itself."""
        for position in range(start, len(rendered.is_content)):
            if rendered.is_content[position] and rendered.token_ids[position] in self._control:
                index = rendered.message_indices[position]
                if index < 0 or rendered.message_roles[index] != "assistant":
                    return ("control_token_in_content",)
        return ()


def load_rendering(folder: Path) -> Rendering:
    """The rendering of the model in `folder`.

    Which renderer: `renderer.json` in the folder (a typed config of the `renderers` package) if it is there, else the
    model type, else `renderers`' own choice by name. Raises ConfigError if the folder has no tokenizer.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, split_special_tokens=True)
        model_type = json.loads((folder / "config.json").read_text()).get("model_type", "")
    except (OSError, ValueError) as error:
        raise ConfigError(f"model folder {folder}: no tokenizer and config.json that load ({error})") from error
    own = folder / "renderer.json"
    config = None
    if own.exists():
        config = _CONFIGS.validate_json(own.read_text())
    elif model_type in _BY_MODEL_TYPE:
        config = _CONFIGS.validate_python({"name": _BY_MODEL_TYPE[model_type]})
    return Rendering(create_renderer(tokenizer, config), frozenset(tokenizer.added_tokens_decoder), tokenizer)


def _wire(message: Message) -> Any:
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        wire["reasoning_content"] = message.reasoning
    if message.tool_calls:
        wire["tool_calls"] = [
            {"type": "function", "id": c.id, "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    return wire


def _tool(tool: Tool) -> Any:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _arguments(value: Any) -> str | None:
    """Arguments as JSON text, or None where a harness could not read them (a NaN, say, or not an object)."""
    if not isinstance(value, dict):
        return None
    try:
        return to_json(value)
    except ValueError:
        return None
