"""O16: a stream cut anywhere, or into single bytes, decodes to the same text; no U+FFFD appears."""

import json
from collections.abc import Iterator

import pytest

from proxy_addons.conversation import ToolCall
from tests.proxy_addons.dialects.wire import DIALECTS
from tests.proxy_addons.dialects.wire import assemble
from tests.proxy_addons.dialects.wire import decode
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import make_request
from tests.proxy_addons.dialects.wire import stream_bytes

TEXT = "価格は5円🎉"
REPLY = make_reply(TEXT, ToolCall("c1", "f", json.dumps({"t": TEXT}, ensure_ascii=False)), reasoning=TEXT)


@pytest.mark.parametrize("name", DIALECTS)
def test_o16_any_cut(name: str) -> None:
    data = stream_bytes(DIALECTS[name], make_request(), REPLY)
    whole = assemble(name, decode([data]))
    assert whole == DIALECTS[name].reply_json(make_request(), REPLY)
    assert json.dumps(whole, ensure_ascii=False).count(TEXT) == 3
    for chunks in _cuts(data):
        text = "".join(part.decode("utf-8", "replace") for part in chunks)
        assert "\ufffd" not in text, "a client that decodes each chunk alone would see it"
    assert assemble(name, decode(bytes([byte]) for byte in data)) == whole


def _cuts(data: bytes) -> Iterator[list[bytes]]:
    return ([data[:at], data[at:]] for at in range(1, len(data)))
