"""Between the conversation form and token ids, through the `renderers` package.

Text that came from a file or a tool never becomes a control token: the tokenizer splits special tokens found in text
(case O76), and what slips through (a model whose control tokens are not marked special) is found and reported.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray
from pydantic import TypeAdapter
from renderers import Renderer
from renderers import RendererConfig
from renderers import create_renderer
from renderers.base import RenderedTokens
from renderers.base import ToolCallParseStatus
from renderers.default import DefaultRenderer
from transformers import AutoTokenizer

from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from proxy_addons.errors import ConfigError
from proxy_addons.images import content_parts
from proxy_addons.plain_tokenizer import IdsOnly
from proxy_addons.plain_tokenizer import PlainTokenizer
from proxy_addons.records import to_json
from proxy_addons.vision import one_token_an_image
from proxy_addons.vision import seeing_renderer

_CONFIGS: TypeAdapter[Any] = TypeAdapter(RendererConfig)
Ids = NDArray[np.int32]
"""Token ids, one dimension."""

WHOLE_TOKENS = 4_000_000
"""How many tokens of whole prompts are kept for rollouts that open alike (4 bytes each)."""
TAIL_TOKENS = 256
"""How far from a prompt's end the last whole turn's end is looked for; it is a few tokens away."""
OFFERS = 64

_BY_MODEL_TYPE = {"qwen3": "qwen3", "qwen3_moe": "qwen3", "qwen3_vl": "qwen3-vl", "qwen3_vl_moe": "qwen3-vl"}


@dataclass(frozen=True)
class Parsed:
    """A sampled turn read back. `findings` names what could not be read as the policy meant it."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    findings: tuple[str, ...]


@dataclass(frozen=True)
class _Offer:
    """A set of tools as the template takes it, and its name."""

    tools: Sequence[Tool]
    wire: list[Any] | None
    digest: str


class Rendering:
    """One model's template: messages → ids and ids → message."""

    def __init__(
        self,
        renderer: Renderer,
        tokenizer: Any,
        image_id: int | None = None,
        brief: tuple[Renderer, IdsOnly] | None = None,
    ) -> None:
        """`brief` is the same renderer over a tokenizer that tells ids only, where there is one."""
        self.renderer = renderer
        self._brief = brief
        self.tokenizer = tokenizer
        self.stop_token_ids = tuple(renderer.get_stop_token_ids())
        self.opaque = isinstance(renderer, DefaultRenderer)
        """Whether control tokens in a text do become control tokens: the template is encoded whole."""
        self._control = frozenset(tokenizer.added_tokens_decoder) - {image_id}  # an image's own tokens are content
        self._control_text = re.compile("|".join(map(re.escape, tokenizer.get_added_vocab())) or "(?!)")
        self._image_id = image_id
        self._offers: list[_Offer] = []
        self._whole: LRUCache[Any, tuple[Ids, tuple[str, ...]]] = LRUCache(WHOLE_TOKENS, getsizeof=lambda v: len(v[0]))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="render")
        self._tail_is_enough = not self.opaque and image_id is None
        self._tail_is_enough = self._tail_is_enough and self._same_from_the_tail()

    @property
    def sees_images(self) -> bool:
        """Whether the policy is shown images; else it reads a placeholder in their place."""
        return self._image_id is not None

    def one_token_an_image(self, ids: list[int], images: int) -> list[int]:
        """The prompt with its images unexpanded. Raises `Problem` if it does not have as many."""
        assert self._image_id is not None
        return one_token_an_image(ids, self._image_id, images)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Ids, tuple[str, ...]]:
        """The prompt from nothing, ready for the assistant's turn, with findings."""
        rendered = self.renderer.render(
            [_wire(m) for m in messages], tools=self._wire_tools(tools), add_generation_prompt=True
        )
        return np.asarray(rendered.token_ids, dtype=np.int32), self._spelled(messages) or self._forged(rendered, 0)

    async def render_apart(self, messages: tuple[Message, ...], tools: Sequence[Tool]) -> tuple[Ids, tuple[str, ...]]:
        """As `render`, in a thread: a long prompt takes tens of milliseconds, and other calls must not wait for it.

        The rollouts of a group open with equal requests, so the last ones are kept (but for images, which are large).
        """
        if any(message.images for message in messages):
            return await asyncio.to_thread(self.render, messages, tools)
        key = (self.digest(tools), messages)

        def work() -> tuple[Ids, tuple[str, ...]]:
            if key not in self._whole:
                self._whole[key] = self.render(messages, tools)
            return self._whole[key]

        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def replied(self, messages: Sequence[Message], reply: Message, tools: Sequence[Tool]) -> list[int]:
        """The conversation up to the end of a reply, as the template writes it."""
        wire = [_wire(m) for m in (*messages, reply)]
        return list(self.renderer.render(wire, tools=self._wire_tools(tools)).token_ids)

    def extend(
        self, before: Ids, sampled: int, new: Sequence[Message], tools: Sequence[Tool]
    ) -> tuple[list[int], tuple[str, ...]] | None:
        """The tokens that go after `before`, a prompt and the `sampled` tokens of its answer, to make the next prompt.

        None where the template rewrites history.
        """
        start = len(before) - sampled
        tail = self._tail(before[:start])
        own = before[start:].tolist()
        wire, offered = [_wire(m) for m in new], self._wire_tools(tools)
        rendered = None
        if self._brief is not None:
            renderer, tokenizer = self._brief
            tokenizer.met = False
            rendered = renderer.bridge_to_next_turn(tail, own, wire, tools=offered)
            if tokenizer.met:
                rendered = None
        if rendered is None:
            rendered = self.renderer.bridge_to_next_turn(tail, own, wire, tools=offered)
        base = len(tail) + len(own)
        if rendered is None or rendered.token_ids[:base] != tail + own:
            return None
        return list(rendered.token_ids[base:]), self._forged(rendered, base)

    def parse(self, sampled: Sequence[int], prompt: Ids, tools: Sequence[Tool], call_prefix: str) -> Parsed:
        """The assistant turn in `sampled`. A tool call that cannot be read stays visible as text."""
        parsed = self.renderer.parse_response(
            list(sampled), tools=self._wire_tools(tools), prompt_ids=self._tail(prompt)
        )
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

    def _tail(self, prompt: Ids) -> list[int]:
        """The end of a prompt, from the end of its last whole turn: all that is looked at to go on from it."""
        if self._tail_is_enough:
            near = prompt[-TAIL_TOKENS:].tolist()
            for position in range(len(near) - 1, -1, -1):
                if near[position] in self.stop_token_ids:
                    return near[position:]
        return prompt.tolist()

    def _same_from_the_tail(self) -> bool:
        """Whether this model's template really goes on alike from the end of a prompt and from the whole of it."""
        prompt, _ = self.render([Message("user", "Go on.")], ())
        whole, tail, reply = prompt.tolist(), self._tail(prompt), [self.stop_token_ids[0]]
        for new in (Message("user", "And now?"), Message("tool", "done", tool_call_id="1")):
            ways = [
                (before, self.renderer.bridge_to_next_turn(before, reply, [_wire(new)])) for before in (whole, tail)
            ]
            if len({tuple(after.token_ids[len(before) :]) if after else None for before, after in ways}) > 1:
                return False
        return True

    def digest(self, tools: Sequence[Tool]) -> str:
        """A name for the set of tools that a call offered."""
        return self._offer(tools).digest

    def _wire_tools(self, tools: Sequence[Tool]) -> list[Any] | None:
        return self._offer(tools).wire

    def _offer(self, tools: Sequence[Tool]) -> _Offer:
        """The same few sets come again on every call."""
        for known in self._offers:
            if known.tools == tools:
                return known
        offer = _Offer(tools, [_tool(tool) for tool in tools] or None, _tools_digest(tools))
        self._offers = [offer, *self._offers[: OFFERS - 1]]
        return offer

    def _spelled(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """The same finding where the template is opaque, by the text alone."""
        if not self.opaque:
            return ()
        texts = (t for m in messages for t in (m.content, m.reasoning, *(c.arguments for c in m.tool_calls)))
        return ("control_token_in_content",) if any(map(self._control_text.search, texts)) else ()

    def encode_again(self, ids: Sequence[int]) -> list[int]:
        """What the text of `ids` encodes to, control tokens kept as they are. Never for training."""
        again: list[int] = []
        for control, run in groupby(ids, self._control.__contains__):
            part = list(run)
            again += part if control else self.tokenizer.encode(self.tokenizer.decode(part), add_special_tokens=False)
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
    model type, else `renderers`' own choice by name. Raises ConfigError if the folder has no tokenizer or nothing
    to render with, or if the policy sees images and cannot be shown them.
    """
    try:
        tokenizer = _tokenizer(folder, split_special_tokens=True)
        model_type = json.loads((folder / "config.json").read_text()).get("model_type", "")
    except (OSError, ValueError) as error:
        raise ConfigError(f"model folder {folder}: no tokenizer and config.json that load ({error})") from error
    try:
        config = _config(folder, model_type)
        if config is not None and config.name == "qwen3-vl":
            seeing = seeing_renderer(tokenizer, config, folder)
            return Rendering(seeing, tokenizer, tokenizer.convert_tokens_to_ids("<|image_pad|>"))
        renderer = create_renderer(tokenizer, config)
    except (ValueError, TypeError, AssertionError) as error:
        raise ConfigError(f"model folder {folder}: no renderer for it: {str(error).splitlines()[0]}") from error
    if isinstance(renderer, DefaultRenderer):
        if tokenizer.chat_template is None:
            raise ConfigError(
                f"model folder {folder}: model type {model_type!r} has no renderer of its own and the folder has no "
                "chat template; add chat_template.jinja, or name a renderer in renderer.json"
            )
        # It encodes the template's own control tokens with the text, so these must not be split.
        tokenizer = _tokenizer(folder)
        return Rendering(create_renderer(tokenizer, config), tokenizer)
    plain = PlainTokenizer(tokenizer)
    ids_only = IdsOnly(plain, tokenizer.added_tokens_decoder)
    return Rendering(create_renderer(plain, config), tokenizer, brief=(create_renderer(ids_only, config), ids_only))


def _config(folder: Path, model_type: str) -> Any:
    own = folder / "renderer.json"
    if own.exists():
        return _CONFIGS.validate_json(own.read_text())
    return _CONFIGS.validate_python({"name": _BY_MODEL_TYPE[model_type]}) if model_type in _BY_MODEL_TYPE else None


def _tokenizer(folder: Path, **options: Any) -> Any:
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, **options)


def _tools_digest(tools: Sequence[Tool]) -> str:
    text = to_json([[t.name, t.description, t.parameters, t.kind] for t in tools])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _wire(message: Message) -> Any:
    wire: dict[str, Any] = {"role": message.role, "content": content_parts(message)}
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
