"""Whatever JSON a client sends, reading it gives a request or a `Problem`, and nothing else."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from proxy_addons.conversation import Problem
from proxy_addons.conversation import Request
from tests.proxy_addons.dialects.wire import DIALECTS

_WORDS = """
user assistant system developer tool text image thinking tool_use tool_result function custom namespace
message reasoning function_call custom_tool_call input_text function_call_output additional_tools
tool_reference refusal x-anthropic-billing-header model
"""
_KEYS = """
role content type text name id call_id tool_use_id tool_call_id input arguments output tools tool_calls
function parameters input_schema format summary thinking namespace is_error description tool_name
parts functionCall functionResponse inlineData functionDeclarations args response mimeType
"""
_TOP = """
messages input system instructions tools stop stop_sequences max_tokens temperature stream stream_options n
model previous_response_id top_p max_output_tokens contents systemInstruction generationConfig generateContentRequest
"""
_words, _keys, _top = (st.sampled_from(names.split()) for names in (_WORDS, _KEYS, _TOP))
_leaf = st.none() | st.booleans() | st.integers(-1, 3) | st.floats() | _words
_value = st.recursive(
    _leaf,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=5),
    max_leaves=12,
)
_entry = st.fixed_dictionaries(
    {"role": _words, "content": _value}, optional={"type": _words, "tool_calls": _value, "parts": _value}
)
_body = st.dictionaries(_top, _value | st.lists(_entry | _value, max_size=3), max_size=6)


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=150, deadline=None)
@given(body=_body)
def test_parse_gives_a_request_or_a_problem(name: str, body: dict[str, Any]) -> None:
    with contextlib.suppress(Problem):
        request = DIALECTS[name].parse(body, {})
        assert isinstance(request, Request)
        assert request.messages
        assert all(isinstance(message.content, str) for message in request.messages)
