"""A very small policy that sees, images for it, and what plain transformers says of them: `python -m
tests.support.seeing FOLDER` reads rows from its standard input. A process of its own, because veRL puts its own
forward pass into the classes of transformers."""

import json
import subprocess
import sys
from dataclasses import asdict
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText
from transformers import Qwen3VLConfig
from transformers import Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tasks.run import ROOT
from tests.support.calls import Recording
from training.rows import Row

IMAGE, VIDEO, START, END, VOCAB = 60, 61, 62, 63, 64


def save_seeing_policy(folder: Path) -> Path:
    """Write a Qwen3-VL of a few thousand weights."""
    torch.manual_seed(0)
    text = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 64,
        "max_position_embeddings": 512,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 2,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 32,
        "out_hidden_size": 32,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 1],
    }
    tokens: dict[str, Any] = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": START}
    config = Qwen3VLConfig(text_config=text, vision_config=vision, vision_end_token_id=END, **tokens)
    model = Qwen3VLForConditionalGeneration(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)  # so that what is seen changes what is said
    model.save_pretrained(folder)
    sizes = {"patch_size": 16, "merge_size": 2, "size": {"shortest_edge": 1024, "longest_edge": 65536}}
    (folder / "preprocessor_config.json").write_text(json.dumps(sizes))
    return folder


def paint(folder: Path, width: int, height: int) -> tuple[str, list[int]]:
    """An image on disk, named by its digest as the proxy does it: its file without the extension, and its tokens in a
    prompt."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(width)
    pixels = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8).numpy()
    data = BytesIO()
    Image.fromarray(pixels).save(data, "png")
    file = folder / sha256(data.getvalue()).hexdigest()
    file.with_suffix(".png").write_bytes(data.getvalue())
    return str(file), [START, *[IMAGE] * (width // 32 * (height // 32)), END]


def plain_log_probs(folder: Path, rows: list[Row]) -> list[list[float]]:
    """What transformers says about each row; the first token gets 0.0."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.support.seeing", str(folder)],
        input=json.dumps([asdict(row) for row in rows]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    found: list[list[float]] = json.loads(told.stdout)
    return found


def recorded(policy: Path, folder: Path, sample: int, *, lost: bool = False) -> Recording:
    """Two turns of a rollout with a picture each. Its images lie in `folder`, but for the last one if it is `lost`."""
    (one, shown), (two, shown_next) = paint(folder, 64, 96), paint(folder, 160, 32)
    rec, opening, next_turn = Recording(sample), [1, *shown, 2], [3, *shown_next, 4]
    row = Row("p", "p", [*opening, 10 + sample, 20, *next_turn, 30, 40 + sample], [], [], (0,), (0,), images=(one, two))
    (scores,) = plain_log_probs(policy, [row])
    names = [Path(one).name, "gone" if lost else Path(two).name]
    rec.call(None, opening, row.ids[len(opening) :][:2], sampled_logprobs=scores[len(opening) :][:2], images=names[:1])
    rec.call(0, next_turn, row.ids[-2:], sampled_logprobs=scores[-2:], images=names)
    return rec


def _scores(folder: Path, row: Row) -> list[float]:
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([list(row.ids)])
    inputs = {"input_ids": ids}
    if row.images:
        pictures = [Image.open(f"{name}.png").convert("RGB") for name in row.images]
        processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
        inputs |= {**processor(images=pictures, return_tensors="pt"), "mm_token_type_ids": (ids == IMAGE).int()}
    with torch.no_grad():
        scores = (model(**inputs).logits[0, :-1] / row.temperature).log_softmax(-1)
    return [0.0, *scores.gather(1, ids[0, 1:, None])[:, 0].tolist()]


if __name__ == "__main__":
    print(json.dumps([_scores(Path(sys.argv[1]), Row(**row)) for row in json.load(sys.stdin)]))
