"""Rows with images: what the learner computes of them is what transformers does, and what does not fit is refused."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.support.epochs import run_job
from tests.support.epochs import write_epoch
from tests.support.policy import make_learner
from tests.support.policy import save_policy
from tests.support.policy import whole
from tests.support.seeing import IMAGE
from tests.support.seeing import START
from tests.support.seeing import paint
from tests.support.seeing import plain_log_probs
from tests.support.seeing import recorded
from tests.support.seeing import save_seeing_policy
from training.checkpoint import export
from training.rows import Row
from training.rows import build_rows
from training.vision import vision_of

pytestmark = pytest.mark.timeout(300)  # veRL takes seconds to import


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_seeing_policy(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def rows(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """With two images, with none, and with one."""
    images = tmp_path_factory.mktemp("images")
    (tall, tall_ids), (wide, wide_ids) = paint(images, 64, 96), paint(images, 160, 32)
    prompts = [[1, *tall_ids, 2, 3, *wide_ids, 4], [5, 6, 7], [*wide_ids, 8]]
    made = []
    for number, (prompt, own) in enumerate(zip(prompts, [(tall, wide), (), (wide,)], strict=True)):
        ids = [*prompt, 10 + number, 20, 30]
        mask = [0] * len(prompt) + [1] * 3
        row = Row(f"a{number}", "a", ids, mask, [0.0] * len(ids), (0,), (0,), 1.0, images=own)
        made.append(row)
    scored = plain_log_probs(folder, made)
    return [
        replace(row, logprobs=[p * bit for p, bit in zip(own, row.mask, strict=True)])
        for row, own in zip(made, scored, strict=True)
    ]


def test_scores_are_those_of_transformers(folder: Path, rows: list[Row]) -> None:
    warm = [replace(row, temperature=0.5) for row in rows]
    learner = make_learner(folder)
    for asked in (rows, warm):
        scores = learner.log_probs([whole(row) for row in asked])
        for found, wanted in zip(scores, plain_log_probs(folder, asked), strict=True):
            assert found == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 2}], ids=["weights", "adapter"])
def test_an_update_reaches_the_eyes_and_the_export_sees(
    folder: Path, rows: list[Row], tmp_path: Path, settings: dict[str, int]
) -> None:
    learner = make_learner(folder, learning_rate=1e-3, **settings)
    for step in range(2):  # an adapter's first step moves the half of it that is 0
        numbers = learner.update(rows, {"a0": 1.0, "a1": -1.0, "a2": 0.5}, seed=0, step=step)
        assert numbers["grad_norm"] > 0
        assert numbers["logprob_agreement"]["mean"] < (1e-4 if step == 0 else 1.0)
    export(learner, folder, tmp_path / "hf", torch.float32, rows[0])
    before, after = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "hf"))
    assert before.keys() == after.keys()
    moved = {name for name in before if not before[name].equal(after[name])}
    assert {"model.visual.blocks.0.attn.qkv.weight", "model.language_model.layers.0.mlp.up_proj.weight"} <= moved
    scores = learner.log_probs([whole(row) for row in rows])
    for found, wanted in zip(scores, plain_log_probs(tmp_path / "hf", rows), strict=True):
        assert found == pytest.approx(wanted, abs=1e-4)


def test_what_does_not_fit_is_refused_by_its_reason(folder: Path, rows: list[Row]) -> None:
    vision = vision_of(folder)
    assert vision is not None
    both = rows[0]
    assert vision.why_not(both) is None
    assert vision.why_not(replace(both, images=both.images[::-1])) == "image_tokens_differ"
    assert vision.why_not(replace(both, images=both.images[:1])) == "image_tokens_differ"
    assert vision.why_not(replace(both, ids=[*both.ids, IMAGE])) == "image_tokens_differ"
    assert vision.why_not(replace(both, ids=[*both.ids, START])) is None
    assert vision.why_not(replace(both, images=(both.images[0], "/nowhere/a"))) == "image_missing"
    assert vision_of(save_policy(folder.parent / "blind")) is None


def test_an_image_that_is_not_what_was_recorded_is_refused_and_counted(folder: Path, tmp_path: Path) -> None:
    """As large as before, so that its tokens fit."""
    rec, vision = recorded(folder, tmp_path / "images", 0), vision_of(folder)
    assert vision is not None
    calls = [call | {"images": [str(tmp_path / "images" / name) for name in call["images"]]} for call in rec.calls]
    file = Path(calls[1]["images"][1]).with_suffix(".png")
    picture = Image.open(file)
    picture.putpixel((0, 0), (1, 2, 3))
    picture.save(file)
    rows, report = build_rows(calls, max_row_tokens=1000, unseen=vision.why_not)
    assert (rows, dict(report.refused), dict(report.refused_tokens)) == ([], {"image_changed": 2}, {"image_changed": 4})
    file.write_bytes(b"no picture")
    assert build_rows(calls, max_row_tokens=1000, unseen=vision.why_not)[1].refused == {"image_changed": 2}


def test_what_is_transparent_is_white_as_vllm_makes_it_or_refused(folder: Path, tmp_path: Path) -> None:
    vision, shown, refused = vision_of(folder), [], []
    assert vision
    for mode, colour in (("RGBA", (200, 0, 0, 0)), ("RGB", (255, 255, 255)), ("LA", (200, 0))):
        Image.new(mode, (32, 32), colour).save(tmp_path / "image.png")
        file = tmp_path / sha256((tmp_path / "image.png").read_bytes()).hexdigest()
        (tmp_path / "image.png").rename(file.with_suffix(".png"))
        row = Row("a0", "a", [START, IMAGE, 1], [0, 0, 1], [0.0] * 3, (0,), (0,), images=(str(file),))
        refused.append(vision.why_not(row))
        shown.append(vision.inputs([row])[0][0]["pixel_values"])
    assert shown[0].equal(shown[1])
    assert refused == [None, None, "image_transparent"]  # of vLLM's versions some make it white


def test_an_opening_has_no_part_of_an_image(folder: Path, rows: list[Row]) -> None:
    vision = vision_of(folder)
    assert vision is not None
    both = rows[0]
    first = both.ids.index(IMAGE) + list(both.ids).count(IMAGE) - 5
    for tokens in range(1, len(both.ids) + 1):
        short = vision.opening(both, tokens)
        assert vision.why_not(short) is None
        assert len(short.ids) >= max(tokens, first)
    assert len(vision.opening(both, 1).images) == 1
    assert vision.opening(rows[1], 2).ids == [5, 6]


def test_a_row_has_the_images_of_its_trained_calls_in_order(folder: Path, tmp_path: Path) -> None:
    rec, vision = recorded(folder, tmp_path / "images", 0), vision_of(folder)
    assert vision is not None
    calls = [call | {"images": [str(tmp_path / "images" / name) for name in call["images"]]} for call in rec.calls]
    (row,), _ = build_rows(calls, max_row_tokens=1000, unseen=vision.why_not)
    assert list(row.images) == calls[1]["images"]
    (row,), report = build_rows([calls[0], calls[1] | {"status": "lost"}], max_row_tokens=1000, unseen=vision.why_not)
    assert (list(row.images), dict(report.refused)) == (calls[0]["images"], {"lost": 1})
    blind, report = build_rows(calls, max_row_tokens=1000)
    assert (blind, dict(report.refused)) == ([], {"images_in_prompt": 2})


def test_an_epoch_of_recorded_calls_with_images(folder: Path, tmp_path: Path) -> None:
    """The last rollout's picture is gone."""
    recordings = [recorded(folder, tmp_path / "images", sample, lost=sample == 2) for sample in range(3)]
    job = write_epoch(tmp_path, recordings, [1.0, 0.0, 0.5]) | {
        "base_model": str(folder),
        "checkpoint_dir": str(tmp_path / "ck"),
        "result": str(tmp_path / "result.json"),
        "settings": {"threads": 1, "device": "cpu", "learning_rate": 1e-2},
    }
    done = run_job(tmp_path, job)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["rows"], result["trained_tokens"], result["refused"]) == (2, 8, {"image_missing": 2})
    assert result["logprob_agreement"]["mean"] < 1e-5
    assert result["hf_path"]
