"""What a policy that sees needs of its model folder: how many placeholder tokens an image becomes.

The proxy holds the prompt as the model sees it, one placeholder token for each patch, and sends the engine one token an
image with the image itself, because vLLM expands them with its own processor. Both must come to the same ids; the
engine tells its own and the client compares.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from renderers import Renderer
from renderers.base import RenderedTokens
from renderers.qwen3_vl import Qwen3VLRenderer

from proxy_addons.conversation import Problem
from proxy_addons.errors import ConfigError


class GridOnly:
    """An image processor that tells the grid of patches from an image's size and computes no pixel values: the engine
    and the learner do that."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self.merge_size: int = processor.merge_size

    def __call__(self, images: Sequence[Any], return_tensors: str) -> dict[str, Any]:
        """`image_grid_thw`, shape (images, 3): one frame of as many patches as the processor would cut."""
        counts = [self._processor.get_number_of_image_patches(image.height, image.width, {}) for image in images]
        return {"image_grid_thw": np.array([[1, 1, n] for n in counts]), "pixel_values": None}


class SeeingRenderer(Qwen3VLRenderer):
    """Qwen3-VL's, which leaves out every system message but the first: a later one is said by the user instead."""

    def render(self, messages: Sequence[Any], **options: Any) -> RenderedTokens:
        """See `Renderer.render`."""
        return super().render([*messages[:1], *map(_heard, messages[1:])], **options)

    def bridge_to_next_turn(
        self, previous_prompt_ids: list[int], previous_completion_ids: list[int], new_messages: Any, **options: Any
    ) -> RenderedTokens | None:
        """See `Renderer.bridge_to_next_turn`."""
        new = list(map(_heard, new_messages))
        return super().bridge_to_next_turn(previous_prompt_ids, previous_completion_ids, new, **options)


def _heard(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "role": "user"} if message["role"] == "system" else message


def seeing_renderer(tokenizer: Any, config: Any, folder: Path) -> Renderer:
    """The Qwen3-VL renderer with the image sizes of the model in `folder`. Raises ConfigError if it cannot see."""
    if not (folder / "preprocessor_config.json").exists():
        raise ConfigError(
            f"model folder {folder}: a multimodal policy without preprocessor_config.json; copy it from the model"
        )
    try:
        # Only with Pillow, which a proxy for text policies does without.
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    except ImportError as error:
        raise ConfigError(f"model folder {folder}: a multimodal policy needs Pillow: pip install pillow") from error
    try:
        sizes = GridOnly(Qwen2VLImageProcessorPil.from_pretrained(str(folder), local_files_only=True))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"model folder {folder}: preprocessor_config.json does not load ({error})") from error
    return SeeingRenderer(tokenizer, config, processor=SimpleNamespace(image_processor=sizes))


def one_token_an_image(ids: Sequence[int], image_id: int, images: int) -> list[int]:
    """`ids` with each run of the placeholder `image_id` as one token. Raises `Problem` if there are not `images` runs,
    as when the policy wrote such a token itself."""
    runs = 0
    short: list[int] = []
    for token, run in groupby(ids):
        if token == image_id:
            runs += 1
            short.append(token)
        else:
            short.extend(run)
    if runs != images:
        raise Problem("bad_request", f"the prompt has {runs} places for {images} images: a reply wrote image tokens")
    return short
