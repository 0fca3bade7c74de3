"""O28: arguments that come back in another spelling go on with the recorded ids; with another value they branch.

The rule is `conversation.canonical_arguments`: spaces, escapes and the order of keys do not count, all else
does.
"""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from proxy_addons.chain import Placement
from proxy_addons.chain import Trajectory
from proxy_addons.conversation import Message
from proxy_addons.conversation import Request
from proxy_addons.conversation import ToolCall
from proxy_addons.rendering import Rendering
from proxy_addons.rendering import load_rendering
from tests.support.toy_model import make_toy_model

ASKED = Message("user", "go")
RESULT = Message("tool", "done", tool_call_id="x")
SAMPLED = '{"b":1,"a":"é"}'


@pytest.fixture(scope="module")
def rendering(tmp_path_factory: pytest.TempPathFactory) -> Rendering:
    return load_rendering(make_toy_model(tmp_path_factory.mktemp("toy")))


def turn(arguments: str, content: str = "") -> Message:
    return Message("assistant", content, tool_calls=(ToolCall("x", "f", arguments),))


async def place(rendering: Rendering, sampled: Message, returned: Message) -> tuple[Placement, list[int]]:
    """Where the next call stands, and the recorded tokens up to it. The sampled ids are unlike any encoder's."""
    trajectory = Trajectory(rendering)
    first = await trajectory.place(Request((ASKED,)))
    text = sampled.tool_calls[0].arguments.encode()
    ids = (*(100 + byte % 100 for byte in text), rendering.stop_token_ids[0])
    trajectory.add(first, sampled, 0, ids)
    return await trajectory.place(Request((ASKED, returned, RESULT))), [*first.prompt_ids.tolist(), *ids]


@pytest.mark.parametrize("text", ['{"b": 1, "a": "\\u00e9"}', '{"a": "é", "b": 1}', ' {"b":1,\n"a":"é"}'])
async def test_o28_another_spelling_goes_on_with_the_recorded_ids(rendering: Rendering, text: str) -> None:
    placement, recorded = await place(rendering, turn(SAMPLED), turn(text))
    assert placement.whole_prefix
    assert placement.prompt_ids[: placement.prefix_len].tolist() == recorded


@pytest.mark.parametrize(
    ("sampled", "returned"),
    [
        ('{"n":1}', '{"n":1.0}'),
        ('{"n":1e3}', '{"n":1000.0}'),
        ('{"n":1,"n":2}', '{"n":2}'),
        ('{"n":"a "}', '{"n":"a"}'),
        ('{"n":true}', '{"n":1}'),
        ('{"n":["x"]}', '{"n":"x"}'),
        ("not json", "not  json"),
    ],
)
async def test_o28_another_value_branches(rendering: Rendering, sampled: str, returned: str) -> None:
    placement, _ = await place(rendering, turn(sampled), turn(returned))
    assert (placement.parent, placement.prefix_len) == (None, 0)


async def test_o28_trimmed_text_branches(rendering: Rendering) -> None:
    placement, _ = await place(rendering, turn("{}", "so: "), turn("{}", "so:"))
    assert placement.parent is None


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(entry) for entry in value] if isinstance(value, list) else value


@settings(max_examples=60, deadline=None)
@given(
    value=st.dictionaries(st.text(max_size=4), VALUES, max_size=4),
    ascii_only=st.booleans(),
    indent=st.none() | st.just(2),
)
def test_o28_any_respelling_of_any_object_goes_on(
    rendering: Rendering, value: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    sampled = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    returned = json.dumps(shuffled(value), ensure_ascii=ascii_only, indent=indent)
    placement, _ = asyncio.run(place(rendering, turn(sampled), turn(returned)))
    assert placement.whole_prefix
