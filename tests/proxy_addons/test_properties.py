"""What holds for any input, not only for the cases that somebody reported."""

import asyncio
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from proxy_addons.chain import Placement
from proxy_addons.chain import Trajectory
from proxy_addons.conversation import Message
from proxy_addons.conversation import Reply
from proxy_addons.conversation import Request
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from proxy_addons.conversation import Usage
from proxy_addons.conversation import canonical
from proxy_addons.rendering import Rendering
from proxy_addons.rendering import load_rendering
from proxy_addons.settle import settle
from tests.proxy_addons.dialects.wire import DIALECTS
from tests.proxy_addons.dialects.wire import decode
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import make_request
from tests.proxy_addons.dialects.wire import stream_bytes
from tests.support import speakers

Say = Callable[[str], list[int]]
_few = settings(max_examples=25, deadline=None)


@pytest.fixture(scope="module")
def rendering(toy_model: Path) -> Rendering:
    return load_rendering(toy_model)


@pytest.fixture(scope="module")
def say(toy_model: Path) -> Say:
    """Text as a policy would sample it, end of turn included."""
    tokenizer = AutoTokenizer.from_pretrained(str(toy_model))
    return lambda text: tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)


# Any cut of a stream.

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=15, deadline=None)
@given(content=_text, reasoning=_text, argument=_text, data=st.data())
def test_a_stream_cut_anywhere_is_the_same_stream_and_one_cut_short_is_never_whole(
    name: str, content: str, reasoning: str, argument: str, data: st.DataObject
) -> None:
    call = ToolCall("c1", "shell", json.dumps({"cmd": argument}))
    reply = make_reply(content, call, reasoning=reasoning)
    whole = stream_bytes(DIALECTS[name], make_request(), reply, keepalives=1)
    events = decode([whole])
    assert speakers.has_ended_well(name, events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert decode(pieces) == events
    # A client drops the half event that a broken connection leaves.
    end = data.draw(st.integers(0, len(whole) - 1))
    got = decode([whole[: whole.rfind(b"\n\n", 0, end) + 2]]) if b"\n\n" in whole[:end] else []
    assert got == events[: len(got)]
    assert len(got) < len(events)
    assert not speakers.has_ended_well(name, got)


# Any order of interleaved agents.

_TOOL = Tool("sh", "run", {"type": "object"})


@_few
@given(order=st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=14))
def test_any_order_of_agents_gives_each_its_chain(
    rendering: Rendering, say: Say, order: list[tuple[int, bool]]
) -> None:
    """`order` says whose turn it is, and whether that agent asks twice and goes on with the first answer."""
    trajectory = Trajectory(rendering)
    numbers = count()
    histories = {agent: [Message("system", f"agent {agent}"), Message("user", "go")] for agent in range(4)}
    asked: list[tuple[int, Placement, int]] = []
    used: dict[int, list[int]] = {agent: [] for agent in range(4)}
    last: dict[int, list[int]] = {agent: [] for agent in range(4)}

    def ask(agent: int) -> tuple[int, Message]:
        number = next(numbers)
        placement = asyncio.run(trajectory.place(Request(tuple(histories[agent]), (_TOOL,))))
        reply = Message("assistant", f"reply {number}")
        trajectory.add(placement, reply, number, say(reply.content))
        asked.append((agent, placement, number))
        return number, reply

    for agent, twice in order:
        number, reply = ask(agent)
        last[agent] = [number]
        if twice:
            last[agent].append(ask(agent)[0])
        histories[agent] += [reply, Message("user", "more")]
        used[agent].append(number)

    settled = settle(
        [
            {
                "call": call,
                "parent_call": placement.parent.call if placement.parent else None,
                "whole_prefix": placement.whole_prefix,
                "request_key": placement.request_key,
                "status": "ok",
            }
            for _, placement, call in asked
        ]
    )
    for agent, numbers_used in used.items():
        if not numbers_used:
            continue
        # Nothing went on from an agent's last turn: of twins the last one counts there.
        counted = [*numbers_used[:-1], last[agent][-1]]
        own = [call for who, _, call in asked if who == agent]
        assert [call for call in own if settled[call][1] == "ok"] == counted
        assert len({settled[call][0] for call in counted}) == 1
    chains = {agent: settled[last[agent][-1]][0] for agent in used if last[agent]}
    assert len(set(chains.values())) == len(chains)
    # A turn's prompt is its parent's tokens and more; nothing that was sampled was encoded again.
    for _, placement, _ in asked:
        if placement.parent is not None:
            before = placement.parent.tokens().tolist()
            assert placement.prompt_ids[: len(before)].tolist() == before
            assert len(placement.new_messages) == 1


# Any re-spelling of arguments.

_leaf = st.none() | st.booleans() | st.integers() | st.sampled_from([0.5, -1.25, 1e300]) | _text
_value = st.recursive(
    _leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3), max_leaves=8
)
_object = st.dictionaries(_text, _value, max_size=4)


def _respell(value: Any, data: st.DataObject) -> str:
    """The same value as JSON text with other spaces, escapes and order of keys."""

    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shuffled(value[key]) for key in data.draw(st.permutations(list(value)))}
        return [shuffled(entry) for entry in value] if isinstance(value, list) else value

    return json.dumps(
        shuffled(value),
        ensure_ascii=data.draw(st.booleans()),
        indent=data.draw(st.sampled_from([None, 0, 3, "\t"])),
        separators=data.draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:")])),
    )


def _turn(arguments: str) -> Message:
    return Message("assistant", "", tool_calls=(ToolCall("x", "sh", arguments),))


@_few
@given(value=_object, other=_object, data=st.data())
def test_arguments_spelled_otherwise_continue_and_other_values_branch(
    rendering: Rendering, say: Say, value: dict[str, Any], other: dict[str, Any], data: st.DataObject
) -> None:
    trajectory = Trajectory(rendering)
    first = Request((Message("user", "go"),), (_TOOL,))
    placement = asyncio.run(trajectory.place(first))
    sampled = _turn(_respell(value, data))
    call = json.dumps({"name": "sh", "arguments": value})
    trajectory.add(placement, sampled, 0, say(f"<tool_call>\n{call}\n</tool_call>"))

    def sent_back(arguments: str) -> Placement:
        result = Message("tool", "ok", tool_call_id="x")
        return asyncio.run(trajectory.place(Request((*first.messages, _turn(arguments), result), (_TOOL,))))

    again = sent_back(_respell(value, data))
    assert again.parent is not None
    assert again.whole_prefix
    # Compared as text: in Python True == 1 == 1.0, and a harness that turns one into another has changed the turn.
    assume(json.dumps(value, sort_keys=True) != json.dumps(other, sort_keys=True))
    assert sent_back(_respell(other, data)).parent is None


# Any conversation, read back from the dialect's own replies.


@st.composite
def _conversation(draw: st.DrawFn) -> list[Reply]:
    replies = []
    for n in range(draw(st.integers(1, 4))):
        arguments = draw(st.lists(_object, max_size=2))
        calls = tuple(ToolCall(f"call_{n}_{i}", "shell", json.dumps(a)) for i, a in enumerate(arguments))
        finish = "tool_calls" if calls else "stop"
        replies.append(Reply(f"r{n}", "policy", draw(_text), draw(_text), calls, finish, Usage(9, 9), 1))  # type: ignore[arg-type]
    return replies


@pytest.mark.parametrize("name", speakers.NAMES)
@_few
@given(replies=_conversation(), results=_text, user=_text.filter(str.strip))
def test_a_conversation_sent_back_is_the_one_that_was_had(
    name: str, replies: list[Reply], results: str, user: str
) -> None:
    dialect = DIALECTS[name]
    history: list[Any] = [user]
    expected = [Message("user", user)]
    for reply in replies:
        request = dialect.parse(json.loads(json.dumps(speakers.body(name, history))), {})
        assert [canonical(m) for m in request.messages] == [canonical(m) for m in expected]
        answer = dialect.reply_json(request, reply)
        history.append(answer)
        expected.append(reply.message())
        if reply.tool_calls:
            history += [speakers.Result(call, results) for call in speakers.calls(name, answer)]
            expected += [Message("tool", results, tool_call_id=call.id) for call in reply.tool_calls]
        else:
            history.append(user)
            expected.append(Message("user", user))
    read = dialect.parse(json.loads(json.dumps(speakers.body(name, history))), {}).messages
    assert [canonical(m) for m in read] == [canonical(m) for m in expected]
    assert [m.tool_call_id for m in read] == [m.tool_call_id for m in expected]
    assert [m.reasoning for m in read] == [m.reasoning for m in expected]
