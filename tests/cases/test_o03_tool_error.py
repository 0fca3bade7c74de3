"""O03: a failed tool's result reads differently from a successful one, whatever its shape."""

from typing import Any

import pytest

from proxy_addons.conversation import TOOL_ERROR_MARK
from proxy_addons.conversation import Message
from proxy_addons.dialects import anthropic_messages

TEXT = {"type": "text", "text": "2 files"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}


def _result(content: Any, **fields: Any) -> Message:
    block = {"type": "tool_result", "tool_use_id": "t1", "content": content, **fields}
    return anthropic_messages.parse({"messages": [{"role": "user", "content": [block]}]}, {}).messages[0]


@pytest.mark.parametrize("content", ["2 files", [TEXT], [TEXT, IMAGE]])
def test_o03_marker_and_flag(content: Any) -> None:
    fine, failed = _result(content, is_error=False), _result(content, is_error=True)
    assert failed.content == TOOL_ERROR_MARK + fine.content
    assert "tool_error" in failed.flags
    assert "tool_error" not in fine.flags
    assert fine == _result(content)
