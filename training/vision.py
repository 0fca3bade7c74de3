"""What a policy that sees (Qwen3-VL) is shown: recorded images → pixel values and positions, as veRL's engine takes
them."""

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any

import fsspec
import torch
from PIL import Image
from transformers import AutoConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from training.rows import Row


class Vision:
    """The eyes of the model in a Hugging Face folder: its image processor and its placeholder token."""

    def __init__(self, folder: Path, config: Any) -> None:
        self._processor = Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)
        self._token: int = config.image_token_id
        self._merge: int = config.vision_config.spatial_merge_size

    def why_not(self, row: Row) -> str | None:
        """Why the images of `row` cannot be shown in their places; None if they can."""
        sizes = []
        try:
            for name in row.images:
                data = _read(name)
                if sha256(data).hexdigest() != Path(name).name:
                    return "image_changed"
                image = Image.open(BytesIO(data))
                if image.has_transparency_data and image.mode != "RGBA":
                    return "image_transparent"  # black to some versions of vLLM and white to others
                sizes.append(image.size)
        except OSError:
            return "image_missing"
        patches = [self._processor.get_number_of_image_patches(height, width, {}) for width, height in sizes]
        return None if self._runs(row.ids) == [n // self._merge**2 for n in patches] else "image_tokens_differ"

    def inputs(self, rows: Sequence[Row]) -> tuple[list[dict[str, torch.Tensor]], list[torch.Tensor]]:
        """Of each row what the model is given beside its ids: `pixel_values` (patches, values) and `image_grid_thw`
        (images, 3), none without images; and the positions (4, tokens): in the text, and the three of M-RoPE."""
        shown = [self._shown(row) for row in rows]
        grids = [each.get("image_grid_thw", ()) for each in shown]
        return shown, [self._positions(row.ids, own) for row, own in zip(rows, grids, strict=True)]

    def opening(self, row: Row, tokens: int) -> Row:
        """The first `tokens` of `row`, or as many as its first image needs; never a part of an image."""
        end = tokens
        if row.images:
            end = max(end, list(row.ids).index(self._token) + 1)
        while end < len(row.ids) and row.ids[end] == self._token:
            end += 1
        ids = list(row.ids[:end])
        return replace(row, ids=ids, images=row.images[: len(self._runs(ids))])

    def _runs(self, ids: Sequence[int]) -> list[int]:
        """The lengths of the runs of placeholders."""
        return [len(list(run)) for token, run in groupby(ids) if token == self._token]

    def _shown(self, row: Row) -> dict[str, torch.Tensor]:
        if not row.images:
            return {}
        pictures = [_opaque(Image.open(BytesIO(_read(name)))) for name in row.images]
        return dict(self._processor(images=pictures, return_tensors="pt"))

    def _positions(self, ids: Sequence[int], grids: Iterable[torch.Tensor]) -> torch.Tensor:
        """A text token stands one after the one before; an image's tokens on a grid, and what follows behind its
        longer side."""
        grid, start, found = iter(grids), 0, []
        for image, run in groupby(token == self._token for token in ids):
            if image:
                _, height, width = (int(n) // self._merge for n in next(grid))
                down, right = torch.arange(height).repeat_interleave(width), torch.arange(width).repeat(height)
                found.append(torch.stack([torch.zeros_like(down), down, right]) + start)
                start += max(height, width)
            else:
                count = len(list(run))
                found.append(torch.arange(count).expand(3, -1) + start)
                start += count
        return torch.cat([torch.arange(len(ids))[None], torch.cat(found, 1)])


def vision_of(folder: Path) -> Vision | None:
    """The eyes of the model in `folder`; None if it reads text only."""
    config = AutoConfig.from_pretrained(folder)
    return Vision(folder, config) if hasattr(config, "vision_config") else None


def _opaque(image: Image.Image) -> Image.Image:
    """The image in RGB, on white: so vLLM shows one in RGBA."""
    if image.mode != "RGBA":
        return image.convert("RGB")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image)
    return white


def _read(name: str) -> bytes:
    """The image whose file is `name`, which ends in its digest, and an extension. Raises OSError if it is not there."""
    files, path = fsspec.url_to_fs(name)
    found = files.glob(f"{path}.*")
    if not found:
        raise FileNotFoundError(name)
    data: bytes = files.cat_file(found[0])
    return data
