"""What an engine does with the images of a prompt, by the real processor of the model."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from transformers import AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil


def expand(model: Path) -> Callable[[dict[str, Any]], list[int]]:
    """What an engine does with one token an image: the real processor cuts the picture, and its grid is the number."""
    processor = Qwen2VLImageProcessorPil.from_pretrained(str(model))
    pad = AutoTokenizer.from_pretrained(str(model)).convert_tokens_to_ids("<|image_pad|>")

    def prompt(body: dict[str, Any]) -> list[int]:
        urls = iter(part["url"] for part in body["content_parts"])
        ids: list[int] = []
        for token in body["token_ids"]:
            count = 1
            if token == pad:
                data = base64.b64decode(next(urls).partition(",")[2])
                picture = Image.open(io.BytesIO(data)).convert("RGB")
                grid = processor(images=[picture], return_tensors="np")["image_grid_thw"][0]
                count = int(grid.prod()) // processor.merge_size**2
            ids += [token] * count
        return ids

    return prompt
