"""Images on their way from a body to a file and to a policy that sees."""

import base64
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy_addons import gateway
from proxy_addons import images
from proxy_addons.conversation import IMAGE_OMITTED
from proxy_addons.conversation import IMAGE_SHOWN
from proxy_addons.conversation import Image
from proxy_addons.conversation import Message
from proxy_addons.conversation import Problem
from proxy_addons.conversation import Request
from proxy_addons.dialects.reading import Content
from proxy_addons.dialects.reading import image_content
from proxy_addons.dialects.reading import joined
from tests.support.recording import recording

PNG = b"\x89PNG\r\n\x1a\n\xfb\xff"
TEXT = base64.b64encode(PNG).decode()


def image(data: bytes = PNG) -> Image:
    return images.inline_image(base64.b64encode(data).decode(), "image/png", "x")


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{TEXT}",
        f"DATA:image/png;charset=utf-8;BASE64,{TEXT[:4]}\n{TEXT[4:]}",
        f"data:image/png;base64,{TEXT.replace('+', '-').replace('/', '_')}",
        "data:image/png," + "".join(f"%{byte:02x}" for byte in PNG),
    ],
)
def test_every_spelling_of_a_data_url_is_the_same_image(url: str) -> None:
    read = images.linked_image(url, "x")
    assert (read, read.data) == (image(), PNG)


def test_an_image_one_byte_too_large_is_refused() -> None:
    images.linked_image("data:image/png," + "a" * images.MAX_BYTES, "x")
    with pytest.raises(Problem, match="x: the image is larger than 20 MiB"):
        images.linked_image("data:image/png," + "a" * (images.MAX_BYTES + 1), "x")


@pytest.mark.parametrize(
    ("data", "extension"),
    [(PNG, "png"), (b"\xff\xd8\xff\xe0", "jpg"), (b"GIF89a", "gif"), (b"RIFF\0\0\0\0WEBP", "webp"), (b"what", "bin")],
)
def test_a_file_is_named_by_its_content(data: bytes, extension: str) -> None:
    assert images.file_name(image(data)) == f"{image(data).sha256}.{extension}"


def test_an_image_is_written_once_and_whole(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    images.store(folder, [image(), image(), Image(url="https://example.invalid/a.png")])
    (path,) = folder.iterdir()
    assert path.read_bytes() == PNG
    before = path.stat()
    images.store(folder, [image()])
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        images.store(tmp_path, [image()])
    assert list(tmp_path.iterdir()) == []


async def test_a_proxy_that_cannot_store_an_image_stops(
    toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died: list[OSError] = []

    def die(error: OSError) -> None:
        died.append(error)
        raise Problem("internal", "stopped")  # the process would be gone here

    monkeypatch.setattr(gateway, "die", die)
    (tmp_path / "images").write_text("in the way")
    async with recording(toy_model, "http://127.0.0.1:1", tmp_path) as proxy:
        rollout = await proxy.register()
        async with proxy.client(rollout) as client:
            part = {"type": "image_url", "image_url": f"data:image/png;base64,{TEXT}"}
            body = {"messages": [{"role": "user", "content": [part]}]}
            answer = await client.post("/v1/chat/completions", json=body)
        _, rows = await proxy.end(rollout)
    assert (answer.status_code, len(died), rows) == (500, 1, [])


PARTS: Any = st.lists(
    st.text(max_size=9).map(Content) | st.just(Content(IMAGE_OMITTED)) | st.just(image_content(image())), max_size=6
)


@given(parts=PARTS, mark=st.sampled_from(["", "[tool error]\n"]))
def test_an_image_is_shown_in_its_own_place(parts: list[Content], mark: str) -> None:
    """Whatever stands around it, the words of the placeholder themselves included."""
    given_ = joined((Content(mark), joined(parts)), separator="")
    message = Message("user", given_.text, flags=given_.flags, images=given_.images)
    (shown,) = images.show(Request((message,))).messages
    pieces = [IMAGE_SHOWN if part.images else part.text for part in parts]
    assert shown.content == mark + "\n".join(filter(None, pieces))
    assert all(shown.content[i.at :].startswith(IMAGE_SHOWN) for i in shown.images)
    assert len(shown.images) == sum(bool(part.images) for part in parts)
    assert shown.flags == ()
