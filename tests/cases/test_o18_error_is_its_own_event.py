"""O18: whatever was sent before, an error arrives as an event of its own."""

import pytest

from proxy_addons.conversation import Problem
from tests.proxy_addons.dialects.wire import DIALECTS
from tests.proxy_addons.dialects.wire import decode
from tests.proxy_addons.dialects.wire import make_reply
from tests.proxy_addons.dialects.wire import make_request


@pytest.mark.parametrize("name", DIALECTS)
def test_o18_every_piece_is_whole_events(name: str) -> None:
    """A stream hands out whole events only, so one that stops after any piece leaves no half event behind."""
    reply = make_reply("text\n\ndata: not an event\n\n", reasoning="a\n\nb")
    count = len(list(DIALECTS[name].open_stream(make_request(), "r1", 1).reply(reply)))
    for sent in range(count):
        stream = DIALECTS[name].open_stream(make_request(), "r1", 1)
        events = stream.reply(reply)
        parts = [stream.start(), stream.keepalive(), *(next(events) for _ in range(sent))]
        before = decode(parts)
        after = decode([*parts, stream.error(Problem("internal", "it\n\nbroke"))])
        assert after[:-1] == before
        data = after[-1][1]
        error = data["response"]["error"] if "response" in data else data["error"]
        assert error["message"] == "it\n\nbroke"
