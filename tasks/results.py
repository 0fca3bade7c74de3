"""A page that sets runs beside each other: held-out success after each epoch, with intervals.

    python -m tasks.results runs/results.md runs/long-0 runs/long-1

The page goes where the first argument says and its picture beside it; the runs need a `summary.json`.
"""

import json
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proxy_addons.errors import ConfigError
from proxy_addons.errors import OpenForgeError
from tasks import plots
from tasks.report import duration
from tasks.report import number
from tasks.report import percent
from tasks.report import write_text

_SHOWN = ("model", "harnesses", "epochs", "tasks_per_epoch", "group_size", "heldout_tasks", "heldout_samples")

Row = Mapping[str, Any]


def page(summaries: Sequence[Row], picture: str) -> str:
    """Markdown. Raises ConfigError if a run was not measured after each epoch."""
    for each in summaries:
        if not each["heldout_by_epoch"]:
            raise ConfigError(f"{each['run']}: not measured after its epochs; run it with evaluate_every: 1")
    config = summaries[0]["config"]
    settings = ", ".join(f"{name} {json.dumps(config[name])}" for name in _SHOWN)
    measured = [{rate["epoch"]: rate for rate in each["heldout_by_epoch"]} for each in summaries]
    epochs = sorted({epoch for rates in measured for epoch in rates})
    by_epoch = [[str(epoch), *(percent(rates.get(epoch)) for rates in measured)] for epoch in epochs]
    harnesses = [
        [f"seed {each['seed']}, {harness}", percent(rates["before"]), percent(rates["after"])]
        for each in summaries
        for harness, rates in each["heldout_by_harness"].items()
    ]
    costs = [
        [
            f"seed {each['seed']}",
            number(each["rollouts"]),
            number(each["unscored"]),
            number(each["sampled_tokens"]),
            number(each["trained_tokens"]),
            duration(sum(each["wall_s"].values())),
        ]
        for each in summaries
    ]
    return "\n\n".join(
        [
            "# Held-out success after each epoch",
            f"{settings}. 95 % Wilson intervals; rollouts without a verdict are not counted.",
            _table(["after epoch", *(f"seed {each['seed']}" for each in summaries)], by_epoch),
            f"![held-out success after each epoch]({picture})",
            _table(["", "before", "after"], harnesses),
            _table(["", "rollouts", "without a verdict", "sampled tokens", "trained tokens", "time"], costs),
        ]
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: Sequence[str]) -> None:
    """Command line. Raises ConfigError."""
    if len(arguments) < 2:
        raise ConfigError("usage: python -m tasks.results PAGE.md RUN...")
    out, runs = Path(arguments[0]), [Path(run) for run in arguments[1:]]
    try:
        summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
    except (OSError, ValueError) as error:
        raise ConfigError(f"no run with a report: {error}") from error
    text = page(summaries, out.with_suffix(".svg").name)
    out.with_suffix(".svg").write_bytes(plots.draw_runs(summaries))
    write_text(out, f"{text}\n")
    print(f"written to {out}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OpenForgeError as error:
        sys.exit(f"results: {error}")
