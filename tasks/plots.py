"""The report's pictures as SVG. A point that is unknown is left out, never drawn as 0."""

import io
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.ticker import PercentFormatter

Epochs = Sequence[Mapping[str, Any]]

_STYLE: Any = {
    "svg.hashsalt": "openforge",  # the same data draws the same bytes
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}

_LINES = {"pg_loss": "policy loss", "ppo_kl": "KL to the rollout policy", "grad_norm": "gradient norm"}


def draw(summary: Mapping[str, Any], epochs: Epochs) -> dict[str, bytes]:
    """Name → SVG of every picture that there is data for."""
    pictures = {}
    with mpl.rc_context(_STYLE):
        if summary["heldout_by_harness"]:
            pictures["heldout"] = _picture(lambda axes: _heldout(axes, summary["heldout_by_harness"]))
        if summary["heldout_by_epoch"]:
            pictures["heldout_by_epoch"] = _picture(lambda axes: _heldout_by_epoch(axes, summary["heldout_by_epoch"]))
        if epochs:
            pictures["success"] = _picture(lambda axes: _success(axes, epochs))
            for name, title in _LINES.items():
                if any(epoch[name] is not None for epoch in epochs):
                    pictures[name] = _picture(partial(_line, epochs=epochs, name=name, title=title), width=3.2)
            pictures["tokens"] = _picture(lambda axes: _tokens(axes, epochs))
            pictures["seconds"] = _picture(lambda axes: _stacked(axes, epochs, "seconds", "seconds per stage"))
            if any(epoch["failures"] for epoch in epochs):
                pictures["failures"] = _picture(lambda axes: _stacked(axes, epochs, "failures", "rollouts by failure"))
    return pictures


def draw_runs(summaries: Sequence[Mapping[str, Any]]) -> bytes:
    """The held-out success of several runs after each epoch, as one SVG."""

    def paint(axes: Axes) -> None:
        for summary in summaries:
            _heldout_by_epoch(axes, summary["heldout_by_epoch"], f"seed {summary['seed']}")
        axes.legend()

    with mpl.rc_context(_STYLE):
        return _picture(paint)


def _picture(paint: Callable[[Axes], None], width: float = 5.0) -> bytes:
    figure = Figure(figsize=(width, 2.8), layout="constrained")
    paint(figure.add_subplot())
    sink = io.BytesIO()
    figure.savefig(sink, format="svg", metadata={"Date": None})
    return sink.getvalue()


def _over_epochs(axes: Axes, title: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _success(axes: Axes, epochs: Epochs) -> None:
    known = [epoch for epoch in epochs if epoch["success"]["rate"] is not None]
    numbers = [epoch["epoch"] for epoch in known]
    rates = [epoch["success"] for epoch in known]
    axes.errorbar(numbers, [r["rate"] for r in rates], yerr=_whiskers(rates), fmt="o-", capsize=3, label="success")
    axes.plot(numbers, [epoch["reward_mean"] for epoch in known], "s--", label="mean reward")
    axes.set_ylim(-0.03, 1.03)
    axes.legend()
    _over_epochs(axes, "training rollouts, 95 % intervals")


def _whiskers(rates: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    return [[r["rate"] - r["lo"] for r in rates], [r["hi"] - r["rate"] for r in rates]]


def _heldout(axes: Axes, by_harness: Mapping[str, Mapping[str, Any]]) -> None:
    for offset, when in ((-0.2, "before"), (0.2, "after")):
        places = [i for i, rates in enumerate(by_harness.values()) if rates[when]["rate"] is not None]
        rates = [list(by_harness.values())[i][when] for i in places]
        heights = [r["rate"] for r in rates]
        axes.bar([i + offset for i in places], heights, 0.36, yerr=_whiskers(rates), capsize=3, label=when)
    axes.set_xticks(range(len(by_harness)), list(by_harness))
    axes.set_ylim(0, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_title("held-out success, 95 % intervals")
    axes.legend()


def _heldout_by_epoch(axes: Axes, measured: Sequence[Mapping[str, Any]], label: str | None = None) -> None:
    known = [each for each in measured if each["rate"] is not None]
    numbers, rates = [each["epoch"] for each in known], [each["rate"] for each in known]
    axes.errorbar(numbers, rates, yerr=_whiskers(known), fmt="o-", capsize=3, label=label)
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    _over_epochs(axes, "held-out success, 95 % intervals")


def _line(axes: Axes, epochs: Epochs, name: str, title: str) -> None:
    known = [(epoch["epoch"], epoch[name]) for epoch in epochs if epoch[name] is not None]
    axes.plot(*zip(*known, strict=True), "o-")
    _over_epochs(axes, title)


def _tokens(axes: Axes, epochs: Epochs) -> None:
    for name in ("prompt_tokens", "sampled_tokens", "trained_tokens"):
        # A logarithmic axis has no place for 0.
        known = [(epoch["epoch"], epoch[name]) for epoch in epochs if epoch[name]]
        if known:
            axes.plot(*zip(*known, strict=True), "o-", label=name.replace("_tokens", ""))
            axes.legend()
    axes.set_yscale("log")
    _over_epochs(axes, "tokens")


def _stacked(axes: Axes, epochs: Epochs, name: str, title: str) -> None:
    numbers = [epoch["epoch"] for epoch in epochs]
    floor = [0.0] * len(epochs)
    for part in dict.fromkeys(part for epoch in epochs for part in epoch[name]):
        heights = [epoch[name].get(part, 0.0) for epoch in epochs]
        axes.bar(numbers, heights, 0.6, bottom=floor, label=part)
        floor = [a + b for a, b in zip(floor, heights, strict=True)]
        axes.legend()
    _over_epochs(axes, title)
