"""Runs beside each other."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxy_addons.errors import ConfigError
from tasks.results import main


def rate(k: int, epoch: int | None = None) -> dict[str, Any]:
    found = {"k": k, "n": 10, "rate": k / 10, "lo": 0.0, "hi": 1.0}
    return found if epoch is None else {"epoch": epoch, **found}


def write(folder: Path, seed: int, by_epoch: list[dict[str, Any]]) -> Path:
    config = dict.fromkeys(("model", "harnesses", "epochs", "tasks_per_epoch", "group_size"), 1)
    summary = {
        "run": folder.name,
        "seed": seed,
        "config": config | {"heldout_tasks": 5, "heldout_samples": 2},
        "heldout_by_epoch": by_epoch,
        "heldout_by_harness": {"codex": {"before": rate(1), "after": rate(9)}},
        "rollouts": 100,
        "unscored": 2,
        "sampled_tokens": 1000,
        "trained_tokens": None,
        "wall_s": {"rollout": 60.0, "train": 5.0},
    }
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_a_page_with_a_column_per_run_and_a_picture(tmp_path: Path) -> None:
    first = write(tmp_path / "a", 0, [rate(1, 0), rate(5, 1)])
    second = write(tmp_path / "b", 1, [rate(2, 0), rate(8, 2)])
    main([str(tmp_path / "results.md"), str(first), str(second)])
    lines = (tmp_path / "results.md").read_text().splitlines()
    assert "| after epoch | seed 0 | seed 1 |" in lines
    assert [line.split(" | ")[0].strip("| ") for line in lines if line.startswith(("| 0", "| 1 ", "| 2"))] == [
        "0",
        "1",
        "2",
    ]
    assert next(line for line in lines if line.startswith("| 1 |")).endswith("(5 of 10) | – |")
    assert "| seed 0 | 100 | 2 | 1,000 | – | 1 min 5 s |" in lines
    assert (tmp_path / "results.svg").read_bytes().startswith(b"<?xml")


def test_what_cannot_be_shown_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run with a report"):
        main([str(tmp_path / "r.md"), str(tmp_path / "nothing")])
    with pytest.raises(ConfigError, match="evaluate_every: 1"):
        main([str(tmp_path / "r.md"), str(write(tmp_path / "a", 0, []))])
    with pytest.raises(ConfigError, match="usage"):
        main([])
