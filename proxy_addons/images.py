"""Images that a harness sends: read from a request, kept once by content, shown to a policy that can see.

A record holds a reference (hash, media type, size); the bytes lie in `images/<sha256>.<ext>` beside the calls file,
once for the whole run however often a harness sends them. A picture behind a URL is not fetched: the sandbox has no
network and neither has its record.
"""

import base64
import binascii
import hashlib
import io
import os
import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from proxy_addons.conversation import IMAGE_LINKED
from proxy_addons.conversation import IMAGE_OMITTED
from proxy_addons.conversation import IMAGE_SHOWN
from proxy_addons.conversation import Image
from proxy_addons.conversation import Message
from proxy_addons.conversation import Problem
from proxy_addons.conversation import Request
from proxy_addons.records import sync_folder

MAX_BYTES = 20 << 20
"""The largest image, decoded."""

# How the files of each kind begin: what a harness says it is may differ from one call to the next.
_MAGIC = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpg"), (b"GIF8", "gif"), (b"BM", "bmp"))

_SHOWN_IN = ("user", "tool")
"""Roles whose images the renderers put into the prompt; elsewhere the placeholder stays."""


def inline_image(data: str, media_type: str, where: str) -> Image:
    """An image sent as base64. Raises `Problem` `bad_request` naming `where`: too large, or no base64."""
    if len(data) > MAX_BYTES * 4 // 3 + 4096:
        raise _refuse(f"the image is larger than {MAX_BYTES >> 20} MiB", where)
    try:
        # Some clients break the lines, some use the URL alphabet.
        plain = "".join(data.split()).replace("-", "+").replace("_", "/")
        return _image(base64.b64decode(plain, validate=True), media_type, where)
    except (binascii.Error, ValueError) as error:
        raise _refuse("the image is not valid base64", where) from error


def linked_image(url: str, where: str) -> Image:
    """An image sent as a URL: read if it is a `data:` URL, else only referred to. Raises as `inline_image`."""
    scheme, _, rest = url.partition(":")
    if scheme.lower() != "data":
        return Image(url=url)
    head, comma, payload = rest.partition(",")
    media_type, *options = head.split(";")
    if not comma:
        raise _refuse("the data URL has no comma", where)
    if "base64" in (option.strip().lower() for option in options):
        return inline_image(unquote_to_bytes(payload).decode("latin-1"), media_type, where)
    return _image(unquote_to_bytes(payload), media_type, where)


def _image(data: bytes, media_type: str, where: str) -> Image:
    if not data:
        raise _refuse("the image is empty", where)
    if len(data) > MAX_BYTES:
        raise _refuse(f"the image is larger than {MAX_BYTES >> 20} MiB", where)
    return Image(hashlib.sha256(data).hexdigest(), media_type, len(data), data=data)


def _refuse(message: str, where: str) -> Problem:
    return Problem("bad_request", f"{where}: {message}", param=where)


def stand_in(image: Image) -> tuple[str, str]:
    """What a text policy reads in the image's place, and the flag that says so."""
    return (IMAGE_LINKED, "image_url_not_fetched") if image.url else (IMAGE_OMITTED, "image_omitted")


def file_name(image: Image) -> str:
    """The image's name in the folder of images: by its content alone."""
    kind = next((ext for magic, ext in _MAGIC if image.data.startswith(magic)), "bin")
    if image.data[:4] == b"RIFF" and image.data[8:12] == b"WEBP":
        kind = "webp"
    return f"{image.sha256}.{kind}"


def store(folder: Path, images: Iterable[Image]) -> None:
    """Write each image to `folder` unless it lies there; what has its name is whole. Raises OSError."""
    for image in images:
        path = folder / file_name(image)
        if not image.data or path.exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{path.name}.{uuid.uuid4().hex}.tmp"
        try:
            with temporary.open("wb") as sink:
                sink.write(image.data)
                sink.flush()
                os.fsync(sink.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(folder)


def show(request: Request) -> Request:
    """The request for a policy that can see: a mark in place of each placeholder, and the image to go with it."""
    if not any(message.images for message in request.messages):
        return request
    return replace(request, messages=tuple(_show(message) for message in request.messages))


def shown_images(messages: Iterable[Message]) -> list[Image]:
    """The images that the policy sees, in order."""
    return [image for message in messages for image in message.images if image.shown]


def _show(message: Message) -> Message:
    if message.role not in _SHOWN_IN:
        return message
    content, images, flags = message.content, [], list(message.flags)
    moved = 0
    for image in message.images:
        start = image.at + moved
        if image.data:
            content = content[:start] + IMAGE_SHOWN + content[start + len(IMAGE_OMITTED) :]
            moved += len(IMAGE_SHOWN) - len(IMAGE_OMITTED)
            flags.remove("image_omitted")
        images.append(replace(image, at=start, shown=bool(image.data)))
    return replace(message, content=content, images=tuple(images), flags=tuple(flags))


def content_parts(message: Message) -> str | list[dict[str, Any]]:
    """A message's content for a renderer: text, or text and pictures in order. Raises `Problem` if one is broken."""
    parts: list[dict[str, Any]] = []
    start = 0
    for image in message.images:
        if image.shown:
            parts.append({"type": "text", "text": message.content[start : image.at]})
            parts.append({"type": "image", "image": _picture(image)})
            start = image.at + len(IMAGE_SHOWN)
    if not parts:
        return message.content
    parts.append({"type": "text", "text": message.content[start:]})
    return [part for part in parts if part.get("text") != ""]


def _picture(image: Image) -> Any:
    """The decoded image (`PIL.Image`, RGB)."""
    from PIL import Image as Pillow  # only a policy that sees needs it

    try:
        return Pillow.open(io.BytesIO(image.data)).convert("RGB")
    except (OSError, ValueError, Pillow.DecompressionBombError, SyntaxError) as error:
        reason = f"image {str(image.sha256)[:12]} ({image.media_type}) cannot be decoded"
        raise Problem("bad_request", reason) from error


def data_url(image: Image) -> str:
    """The image for an engine."""
    return f"data:{image.media_type};base64,{base64.b64encode(image.data).decode('ascii')}"
