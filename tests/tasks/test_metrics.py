"""The numbers of each epoch as a table, and at a tracker."""

import os
from pathlib import Path
from typing import Any

import pytest

from proxy_addons import records
from proxy_addons.errors import ConfigError
from tasks import metrics

SUMMARY = {"run": "r", "heldout_by_epoch": [{"epoch": 0, "rate": 0.25}, {"epoch": 2, "rate": 0.5}]}


def epoch(number: int, **values: Any) -> dict[str, Any]:
    known = dict.fromkeys((*metrics._COUNTS, *metrics._MEASURES))
    success = {"rate": 0.5, "lo": 0.2, "hi": 0.8}
    return {"epoch": number, **known, "success": success, "seconds": {"rollout": 2.0}, "alarms": []} | values


def test_a_row_per_epoch_and_what_is_unknown_is_null(tmp_path: Path) -> None:
    metrics.write(tmp_path, SUMMARY, [epoch(1, rollouts=8), epoch(2, pg_loss=0.1, alarms=["look"])])
    first, second = records.read(str(tmp_path / "metrics.parquet"), metrics.METRICS)
    assert (first["rollouts"], first["pg_loss"], first["heldout_success"]) == (8, None, None)
    assert (second["rollouts"], second["pg_loss"], second["heldout_success"]) == (None, 0.1, 0.5)
    assert (second["alarms"], dict(second["seconds"])) == (["look"], {"rollout": 2.0})


def test_a_tracker_gets_the_known_numbers_and_the_environment_is_as_before(tmp_path: Path) -> None:
    import verl.utils.tracking  # noqa: F401  # it sets variables of its own when it is imported

    before = dict(os.environ)
    run = tmp_path / "the-run"
    with metrics.tracker(["tensorboard"], run, {"seed": 1}) as send:
        send(metrics.numbers(SUMMARY, [epoch(1), epoch(2, rollouts=8)], 2), 2)
    assert dict(os.environ) == before
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "tensorboard"))
    found.Reload()
    tags = found.Tags()["scalars"]
    assert {"rollouts", "success", "seconds/rollout", "heldout_success"} <= set(tags) and "pg_loss" not in tags
    assert [(event.step, event.value) for event in found.Scalars("rollouts")] == [(2, 8.0)]


def test_without_trackers_nothing_is_imported_and_nothing_sent(tmp_path: Path) -> None:
    with metrics.tracker([], tmp_path, {}) as send:
        send({"a": 1.0}, 1)


def test_a_tracker_that_does_not_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "no-key")
    with pytest.raises(ConfigError, match="loggers: wandb did not start"), metrics.tracker(["wandb"], tmp_path, {}):
        raise AssertionError
