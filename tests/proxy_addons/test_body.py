import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from proxy_addons.body import decompress
from proxy_addons.conversation import Problem

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.compress,
}


@pytest.mark.parametrize("coding", COMPRESS)
@settings(max_examples=50, deadline=None)
@given(data=st.binary(max_size=5000))
def test_what_was_compressed_comes_back(coding: str, data: bytes) -> None:
    assert decompress(COMPRESS[coding](data), coding, 5000) == data


@pytest.mark.parametrize("coding", COMPRESS)
def test_a_body_cut_at_any_byte_is_refused(coding: str) -> None:
    whole = COMPRESS[coding](b"some text, and some more of the text" * 3)
    for end in range(1, len(whole)):
        with pytest.raises(Problem, match="ends before"):
            decompress(whole[:end], coding, 5000)


@pytest.mark.parametrize("coding", COMPRESS)
def test_a_bomb_is_never_held_in_memory(coding: str) -> None:
    bomb = COMPRESS[coding](bytes(200 << 20))
    tracemalloc.start()
    with pytest.raises(Problem) as refused:
        decompress(bomb, coding, 1 << 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused.value.status == 413
    # The limit, what one piece of 512 bytes can hold, and a copy of either.
    assert peak < 40 << 20
