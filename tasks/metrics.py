"""The numbers of each epoch as a table, `metrics.parquet`, and to the trackers that veRL knows."""

import contextlib
import os
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from proxy_addons import records
from proxy_addons.errors import ConfigError

_COUNTS = (
    *("rollouts", "scored", "incomplete", "infra_failures", "calls", "chains", "prompt_tokens", "sampled_tokens"),
    *("rows", "rollouts_trained", "trained_tokens"),
)
_MEASURES = (
    *("reward_mean", "pg_loss", "ppo_kl", "grad_norm", "clip_fraction", "entropy_estimate"),
    *("agreement_mean", "agreement_max"),
)

METRICS = pa.schema(
    [
        ("run", pa.string()),
        ("epoch", pa.int32()),
        *((name, pa.int64()) for name in _COUNTS),
        *((name, pa.float64()) for name in ("success", "success_lo", "success_hi", "heldout_success")),
        *((name, pa.float64()) for name in _MEASURES),
        ("seconds", pa.map_(pa.string(), pa.float64())),
        ("alarms", pa.list_(pa.string())),
    ]
)
"""One row per epoch; what is unknown is null. `seconds` is by stage. `heldout_success` is after the epoch's update."""

Row = Mapping[str, Any]


def write(run_dir: Path, summary: Row, epochs: Sequence[Row]) -> None:
    """Write `metrics.parquet`, whole or not at all."""
    rows = [_row(summary, epoch) for epoch in epochs]
    records.write(str(run_dir / "metrics.parquet"), pa.Table.from_pylist(rows, METRICS))


def numbers(summary: Row, epochs: Sequence[Row], epoch: int) -> dict[str, float]:
    """What of an epoch's row is a known number, for a tracker."""
    row = next(_row(summary, each) for each in epochs if each["epoch"] == epoch)
    flat = {name: value for name, value in row.items() if isinstance(value, int | float) and name != "epoch"}
    return flat | {f"seconds/{stage}": seconds for stage, seconds in row["seconds"].items()}


def _row(summary: Row, epoch: Row) -> dict[str, Any]:
    success = epoch["success"]
    heldout = {each["epoch"]: each["rate"] for each in summary["heldout_by_epoch"]}
    return {
        "run": summary["run"],
        "epoch": epoch["epoch"],
        **{name: epoch[name] for name in (*_COUNTS, *_MEASURES)},
        "success": success["rate"],
        "success_lo": success["lo"],
        "success_hi": success["hi"],
        "heldout_success": heldout.get(epoch["epoch"]),
        "seconds": epoch["seconds"],
        "alarms": epoch["alarms"],
    }


@contextlib.contextmanager
def tracker(names: Sequence[str], run_dir: Path, config: Row) -> Iterator[Callable[[dict[str, float], int], None]]:
    """A function that sends numbers of a step to the trackers `names` (veRL's), under the run's name; a run that is
    taken up again goes on in the same place where the tracker can. Raises ConfigError if a tracker does not start."""
    if not names:
        yield lambda _numbers, _step: None
        return
    from verl.utils.tracking import Tracking  # seconds of imports

    run = run_dir.name
    # The trackers are told by the environment where to write and what to go on with; what the user set stands.
    own = {"TENSORBOARD_DIR": str(run_dir / "tensorboard"), "WANDB_DIR": str(run_dir)}
    own |= {"WANDB_RUN_ID": run, "WANDB_RESUME": "allow"}
    added = {name: value for name, value in own.items() if name not in os.environ}
    os.environ.update(added)
    try:
        tracking = _started(Tracking, run, names, config)
        try:
            yield lambda found, step: tracking.log(data=found, step=step)
        finally:
            tracking.finish()
    finally:
        for name in added:
            os.environ.pop(name, None)


def _started(tracking: Any, run: str, names: Sequence[str], config: Row) -> Any:
    try:
        # veRL looks for a proxy in `trainer`.
        found = tracking("openforge", run, list(names), {"trainer": {}, **config})
    except Exception as error:  # each tracker has errors of its own
        raise ConfigError(f"loggers: {', '.join(names)} did not start: {error}") from error
    if missing := set(names) - set(found.logger):
        raise ConfigError(f"loggers: {', '.join(sorted(missing))} did not start; see the warning above")
    return found
