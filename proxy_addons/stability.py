"""How a policy's template treats a conversation that grows, measured on a scripted one when the proxy starts.

Where a template rewrites what came before (Qwen3 drops earlier reasoning at a new user turn), the call opens a row of
its own and its context is paid for again. That is right, but a user should know it before the run and not from its
bill, so the answer per kind of turn is told on the control port (`GET /rendering`) and in the run's report.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jinja2 import TemplateError

from proxy_addons.chain import Trajectory
from proxy_addons.conversation import Message
from proxy_addons.conversation import Request
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from proxy_addons.rendering import Rendering

_TOOLS = (Tool("look", "Look up a word.", {"type": "object", "properties": {"word": {"type": "string"}}}),)
_ASKED = (Message("system", "Be brief."), Message("user", "What is in the garden?"))
_CALL = ToolCall("c0", "look", '{"word": "garden"}')
_FOUND = Message("tool", "A pond.", tool_call_id="c0")
_TWO = (_CALL, ToolCall("c1", "look", '{"word": "house"}'))
_MORE = Message("user", "And behind it?")


@dataclass(frozen=True)
class Turn:
    """One way for a conversation to go on: the policy's `reply`, then `new` messages. `cut`: it ran out of tokens."""

    reply: Message
    new: tuple[Message, ...]
    cut: bool = False


TURNS = {
    "tool_loop": Turn(Message("assistant", tool_calls=(_CALL,)), (_FOUND,)),
    "tool_loop_after_reasoning": Turn(Message("assistant", "", "I should look.", (_CALL,)), (_FOUND,)),
    "parallel_calls": Turn(
        Message("assistant", tool_calls=_TWO), (_FOUND, Message("tool", "A cellar.", tool_call_id="c1"))
    ),
    "new_user_turn": Turn(Message("assistant", "A pond."), (_MORE,)),
    "new_user_turn_after_reasoning": Turn(Message("assistant", "A pond.", "Gardens have ponds."), (_MORE,)),
    "new_user_turn_after_a_cut_reply": Turn(Message("assistant", "A pond and"), (_MORE,), cut=True),
    "late_system_message": Turn(Message("assistant", "A pond."), (Message("system", "Be briefer."), _MORE)),
}


async def measure(rendering: Rendering) -> dict[str, str]:
    """For each of `TURNS`, what the next call does:

    * `one_row`: it goes on in the row, with the prompt that the template would have made anew.
    * `one_row_as_sampled`: it goes on in the row; the template made anew would have shown earlier turns otherwise.
    * `new_row`: the template rewrites what came before.
    * `text_lost`: a new message's text is not in the prompt. `refused`: the template raises.
    """
    return {name: await _measure(rendering, turn) for name, turn in TURNS.items()}


async def describe(rendering: Rendering) -> dict[str, Any]:
    """What a user should know of the policy's template."""
    return {
        "renderer": type(rendering.renderer).__name__,
        "sees_images": rendering.sees_images,
        "reads_tool_calls": bool(getattr(rendering.renderer, "supports_tools", True)),
        "control_tokens_in_text": "refused" if rendering.opaque else "split",
        "turns": await measure(rendering),
    }


async def _measure(rendering: Rendering, turn: Turn) -> str:
    trajectory = Trajectory(rendering)
    try:
        first = await trajectory.place(Request(_ASKED, _TOOLS))
        sampled = _sampled(rendering, first.prompt_ids.tolist(), turn)
        trajectory.add(first, turn.reply, 0, sampled)
        messages = (*_ASKED, turn.reply, *turn.new)
        second = await trajectory.place(Request(messages, _TOOLS))
        anew, _ = rendering.render(messages, _TOOLS)
    except (TemplateError, ValueError, TypeError, KeyError, NotImplementedError):
        return "refused"
    prompts = [rendering.tokenizer.decode(ids) for ids in (second.prompt_ids, anew)]
    if any(message.content not in prompt for message in turn.new for prompt in prompts):
        return "text_lost"
    if not second.whole_prefix:
        return "new_row"
    return "one_row" if np.array_equal(second.prompt_ids, anew) else "one_row_as_sampled"


def _sampled(rendering: Rendering, prompt: list[int], turn: Turn) -> tuple[int, ...]:
    """The reply as the policy would have sampled it after `prompt`: what the template writes for it, to its end."""
    ids = rendering.replied(_ASKED, turn.reply, _TOOLS)
    if ids[: len(prompt)] != prompt:
        # The template opens a reply otherwise than it shows one; what matters is only that there is something.
        text = rendering.tokenizer.encode(turn.reply.content or "look", add_special_tokens=False)
        ids = [*prompt, *text, rendering.stop_token_ids[0]]
    reply = ids[len(prompt) :]
    stops = [i for i, token in enumerate(reply) if token in rendering.stop_token_ids]
    end = stops[0] if stops else len(reply)
    return tuple(reply[: end if turn.cut else end + 1])
