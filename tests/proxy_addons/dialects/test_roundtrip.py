"""What matters most: a reply that the harness sends back is the turn that was recorded, in each dialect and mode."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from proxy_addons.conversation import Reply
from proxy_addons.conversation import ToolCall
from proxy_addons.conversation import Usage
from proxy_addons.conversation import canonical
from tests.proxy_addons.dialects.wire import DIALECTS
from tests.proxy_addons.dialects.wire import PATCH
from tests.proxy_addons.dialects.wire import SHELL
from tests.proxy_addons.dialects.wire import SPAWN
from tests.proxy_addons.dialects.wire import assemble
from tests.proxy_addons.dialects.wire import decode
from tests.proxy_addons.dialects.wire import make_request
from tests.proxy_addons.dialects.wire import send_back
from tests.proxy_addons.dialects.wire import stream_bytes

# Decoded tokens never hold a lone surrogate.
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.just("価格は5円🎉" * 300)
_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([1.5, -0.25, 1.0]) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def _json_object(draw: st.DrawFn) -> str:
    """An object in one of the spellings that a policy may sample."""
    value = draw(st.dictionaries(_text, _value, max_size=4))
    indent = draw(st.sampled_from([None, 2]))
    return json.dumps(value, ensure_ascii=draw(st.booleans()), indent=indent)


_arguments = (
    _json_object() | _text | st.sampled_from(["{}", "[1]", '{"a": NaN}', '{"cut": "of', '{"a": 1e999}', "null"])
)
_patch = _text.map(lambda text: json.dumps({"input": text}, ensure_ascii=False)) | _arguments
_call = (
    st.tuples(st.just("shell"), _arguments)
    | st.tuples(st.just("apply_patch"), _patch)
    | st.tuples(st.just("agents__spawn"), _arguments)
    | st.tuples(st.just("no_such_tool"), _arguments)
)


@st.composite
def _replies(draw: st.DrawFn) -> Reply:
    calls = draw(st.lists(_call, max_size=3))
    return Reply(
        id=draw(st.sampled_from(["r1", "0f3a"])),
        model="policy",
        content=draw(_text),
        reasoning=draw(_text),
        tool_calls=tuple(ToolCall(f"call_{i}", name, arguments) for i, (name, arguments) in enumerate(calls)),
        finish=draw(st.sampled_from(["stop", "tool_calls", "length"])),
        usage=Usage(100, 7, draw(st.sampled_from([None, 0, 80]))),
        created=1_700_000_000,
        stop_sequence=draw(st.sampled_from([None, "###"])),
    )


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=60, deadline=None)
@given(reply=_replies(), cuts=st.lists(st.integers(1, 200), max_size=20), keepalives=st.integers(0, 2))
def test_reply_comes_back_as_the_same_turn(name: str, reply: Reply, cuts: list[int], keepalives: int) -> None:
    dialect = DIALECTS[name]
    request = make_request(SHELL, PATCH, SPAWN)
    # As JSON text, as it goes over the wire.
    whole = json.loads(json.dumps(dialect.reply_json(request, reply), allow_nan=False))
    data = stream_bytes(dialect, request, reply, keepalives)
    streamed = assemble(name, decode(_cut(data, cuts)))
    assert streamed == whole
    parsed = dialect.parse(send_back(name, whole), {})
    assert len(parsed.messages) == 2
    assert canonical(parsed.messages[1]) == canonical(reply.message())
    assert parsed.messages[1].reasoning == reply.reasoning
    assert parsed.notes == ()


def _cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    for size in sizes:
        yield data[:size]
        data = data[size:]
    yield data
