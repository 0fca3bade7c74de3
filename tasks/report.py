"""What a run came to, read from its folder: numbers (`summary.json`, `metrics.parquet`) and a page (`report.html`).

Only files are read, so a run that failed half-way has a report of what there is. What is unknown is None and "–".
"""

import base64
import json
import os
from collections import Counter
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment
from jinja2 import FileSystemLoader
from jinja2 import StrictUndefined

from proxy_addons import records
from proxy_addons.findings import Severity
from proxy_addons.findings import by_severity
from proxy_addons.findings import lookup
from tasks import metrics
from tasks import plots
from tasks.statistics import Rate
from tasks.statistics import difference
from tasks.statistics import mean
from tasks.statistics import rate

SUCCESS = 1.0
"""A rollout succeeded if its reward is at least this; rewards lie in 0 to 1."""

Row = Mapping[str, Any]


def summarise(run_dir: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run's summary and one dict per training epoch, from what is on disk. Needs `run.json`, nothing else."""
    run = json.loads((run_dir / "run.json").read_text())
    stages = _read_stages(run_dir / "stages.jsonl")
    before, after = (_read_rows(run_dir / f"eval-{when}") for when in ("before", "after"))
    between = {int(folder.name.removeprefix("eval-")): _read_rows(folder) for folder in _numbered(run_dir, "eval-")}
    tries = {int(folder.name.removeprefix("epoch-")): _read_rows(folder) for folder in _numbered(run_dir, "epoch-")}
    epochs = [
        _epoch(number, rows, _read_json(run_dir / f"epoch-{number:03}" / "train.json"), stages)
        for number, rows in tries.items()
    ]
    parts = (before, *tries.values(), *between.values(), after)
    everything = [row for rows in parts for row in rows]
    last = last_tries(everything)
    rates = {"before": success(before), "after": success(after)}
    gain = difference(rates["before"], rates["after"])
    summary = {
        "run": run["run"],
        "seed": run["seed"],
        "model": run["model"],
        "harnesses": run["config"].get("harnesses"),
        "epochs": len([epoch for epoch in epochs if epoch["trained"]]),
        "heldout_before": asdict(rates["before"]) if before else None,
        "heldout_after": asdict(rates["after"]) if after else None,
        "heldout_gain": dict(zip(("difference", "lo", "hi"), gain, strict=True)) if gain else None,
        "heldout_by_harness": _by_harness(before, after),
        "heldout_by_epoch": _by_epoch(before, between, after, run["config"].get("epochs")),
        "best": _read_json(run_dir / "checkpoints" / "best.json"),
        "rollouts": len(last),
        "unscored": sum(not is_scored(row) for row in last),
        "infra_failures": sum(row["error_class"] == "InfrastructureError" for row in everything),
        "failures": _failures(last),
        "findings": _findings(last),
        "calls": _total(last, "calls"),
        "chains": _total(last, "chains"),
        "prompt_tokens": _total(last, "prompt_tokens"),
        "sampled_tokens": _total(last, "sampled_tokens"),
        "trained_tokens": _total(epochs, "trained_tokens"),
        "samples_per_rollout": _samples_per_rollout(epochs),
        "resumed_rollouts": sum(stage.get("resumed") or 0 for stage in stages) if stages else None,
        "wall_s": _seconds(stages),
        "engines": _read_json(run_dir / "capability.json") or [],
        "rendering": _read_json(run_dir / "rendering.json"),
        "config": run["config"],
    }
    return summary, epochs


def write_rendering(run_dir: Path, described: Mapping[str, Any]) -> None:
    """Keep for the report what the proxy says of the policy's template."""
    write_text(run_dir / "rendering.json", json.dumps(described, indent=1) + "\n")


def write_report(run_dir: Path, summary: dict[str, Any], epochs: list[dict[str, Any]]) -> Path:
    """Write `summary.json` and `report.html`, each whole or not at all; returns the page's path."""
    write_text(run_dir / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    drawn = plots.draw(summary, epochs)
    pictures = {name: base64.b64encode(svg).decode() for name, svg in drawn.items()}
    page = render("report.html.j2", summary=summary, epochs=epochs, pictures=pictures, epoch_table=epoch_table(epochs))
    write_text(run_dir / "report.html", page)
    metrics.write(run_dir, summary, epochs)
    return run_dir / "report.html"


def render(template: str, **values: Any) -> str:
    """A page from a template of this folder. Raises jinja2's UndefinedError if it asks for what is not given."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    templates.filters |= {"number": number, "percent": percent, "duration": duration, "finding": lookup}
    return templates.get_template(template).render(**values)


def epoch_table(epochs: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """One row of readable text per epoch: the table of the report and of the Prefect artifact."""
    overlapped = any(epoch["overlap"] for epoch in epochs)
    return [
        {
            "epoch": str(epoch["epoch"]),
            "rollouts": str(epoch["rollouts"]),
            "success": percent(epoch["success"]),
            "mean reward": number(epoch["reward_mean"]),
            "trained tokens": number(epoch["trained_tokens"]),
            "rows": number(epoch["rows"]),
            "loss": number(epoch["pg_loss"]),
            "KL": number(epoch["ppo_kl"]),
            "gradient norm": number(epoch["grad_norm"]),
            "log-prob difference, mean / max": f"{number(epoch['agreement_mean'])} / {number(epoch['agreement_max'])}",
            "findings": findings_line(epoch["findings"]),
            "time": duration(sum(epoch["seconds"].values()) if epoch["seconds"] else None),
            **(_overlap_cells(epoch["overlap"] or {}) if overlapped else {}),
        }
        for epoch in epochs
    ]


def _overlap_cells(overlap: Mapping[str, Any]) -> dict[str, str]:
    behind = overlap.get("staleness") or {}
    shares = (overlap.get("update_waited"), overlap.get("slots_idle"))
    return {
        "rollouts by versions behind": ", ".join(f"{versions}: {count}" for versions, count in behind.items()) or "–",
        "waiting: update / places": " / ".join("–" if share is None else f"{share:.0%}" for share in shares),
    }


def number(value: float | None) -> str:
    """A number to read: thousands grouped, four significant digits, "–" if unknown."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def percent(value: Mapping[str, Any] | None) -> str:
    """A rate to read, with its interval and counts; "–" if there is no data."""
    if value is None or value["rate"] is None:
        return "–"
    return f"{value['rate']:.1%} [{value['lo']:.1%}, {value['hi']:.1%}] ({value['k']} of {value['n']})"


def findings_line(found: Mapping[Severity, Mapping[str, int]]) -> str:
    """Findings by severity to read: the fatal ones by name ("fatal: 3 ids_missing; warning: 12"), "–" if none."""
    parts = {severity: str(sum(counts.values())) for severity, counts in found.items()}
    if "fatal" in found:
        parts["fatal"] = ", ".join(f"{count} {code}" for code, count in found["fatal"].items())
    return "; ".join(f"{severity}: {text}" for severity, text in parts.items()) or "–"


def duration(seconds: float | None) -> str:
    """Seconds to read; "–" if unknown."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f} min {rest:.0f} s" if minutes else f"{rest:.1f} s"


_FROM_TRAINER = (
    "rows",
    "trained_tokens",
    "pg_loss",
    "ppo_kl",
    "grad_norm",
    "clip_fraction",
    "entropy_estimate",
    "refused",
    "excluded",
    "groups",
)


def _epoch(number: int, tries: Sequence[Row], train: dict[str, Any] | None, stages: Sequence[Row]) -> dict[str, Any]:
    last = last_tries(tries)
    result = train or {}
    agreement = result.get("logprob_agreement") or {}
    return {
        "epoch": number,
        "rollouts": len(last),
        "incomplete": sum(not row["complete"] for row in last),
        "scored": sum(is_scored(row) for row in last),
        "success": asdict(success(tries)),
        "reward_mean": mean(row["reward"] for row in last if is_scored(row)),
        "failures": _failures(last),
        "infra_failures": sum(row["error_class"] == "InfrastructureError" for row in tries),
        "calls": _total(last, "calls"),
        "chains": _total(last, "chains"),
        "prompt_tokens": _total(last, "prompt_tokens"),
        "sampled_tokens": _total(last, "sampled_tokens"),
        "trained": train is not None,
        "skipped": result.get("skipped"),
        "rollouts_trained": result.get("rollouts"),
        "alarms": result.get("alarms") or [],
        "findings": by_severity(_findings(last)),
        **{name: result.get(name) for name in _FROM_TRAINER},
        "agreement_mean": agreement.get("mean"),
        "agreement_max": agreement.get("max"),
        "seconds": _seconds([stage for stage in stages if stage["epoch"] == number and _of_epoch(stage)]),
        "overlap": next((s for s in stages if s["stage"] == "overlap" and s["epoch"] == number), None),
    }


def _of_epoch(stage: Row) -> bool:
    return not str(stage["stage"]).startswith(("evaluate", "overlap"))


def last_tries(tries: Iterable[Row]) -> list[Row]:
    """One row per slot: the last try is the one that counts."""
    slots: dict[Any, Row] = {}
    for row in sorted(tries, key=lambda row: row["try"]):
        slots[row["kind"], row["epoch"], row["task"], row["sample"]] = row
    return list(slots.values())


def is_scored(row: Row) -> bool:
    """Whether the try has a verdict on what the policy did."""
    return row["reward"] is not None and row["error_class"] in (None, "PolicyFailure")


def success(tries: Iterable[Row]) -> Rate:
    """The success of a stage's rollouts; of each slot's tries the last counts."""
    return rate(row["reward"] >= SUCCESS for row in last_tries(tries) if is_scored(row))


def _numbered(run_dir: Path, prefix: str) -> list[Path]:
    return sorted(run_dir.glob(f"{prefix}[0-9]*"))


def _by_epoch(
    before: Sequence[Row], between: Mapping[int, Sequence[Row]], after: Sequence[Row], epochs: int | None
) -> list[dict[str, Any]]:
    """Held-out success after so many epochs, in order; empty if it was only measured before and after."""
    if not between:
        return []
    measured = {0: before, **between, **({epochs: after} if epochs else {})}
    return [{"epoch": epoch, **asdict(success(rows))} for epoch, rows in measured.items() if rows]


def _by_harness(before: Sequence[Row], after: Sequence[Row]) -> dict[str, dict[str, Any]]:
    names = sorted({row["harness"] for row in (*before, *after)})
    return {
        name: {
            when: asdict(success(row for row in rows if row["harness"] == name))
            for when, rows in (("before", before), ("after", after))
        }
        for name in names
    }


def _failures(rows: Iterable[Row]) -> dict[str, int]:
    return _count(row["error_class"] for row in rows if row["error_class"] is not None)


def _findings(rows: Iterable[Row]) -> dict[str, int]:
    """Code → number of calls (of rollouts, for what belongs to no call). Older rows do not know how many calls."""
    total: Counter[str] = Counter()
    for row in rows:
        total.update(
            json.loads(row["finding_counts"]) if row["finding_counts"] else dict.fromkeys(row["findings"] or (), 1)
        )
    return dict(total.most_common())


def _count(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _total(rows: Iterable[Row], name: str) -> int | None:
    known = [row[name] for row in rows if row[name] is not None]
    return sum(known) if known else None


def _samples_per_rollout(epochs: Iterable[Row]) -> float | None:
    """Training rows per rollout that was trained on."""
    trained = [epoch for epoch in epochs if epoch["rollouts_trained"]]
    return sum(e["rows"] for e in trained) / sum(e["rollouts_trained"] for e in trained) if trained else None


def _seconds(stages: Iterable[Row]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for stage in stages:
        total[stage["stage"]] += stage["seconds"]
    return {name: round(seconds, 3) for name, seconds in total.items()}


def _read_rows(folder: Path) -> list[dict[str, Any]]:
    """A stage's rows: its merged file, or, if the stage was cut off before that, the whole files of single tries."""
    merged = folder / "rollouts.parquet"
    files = [merged] if records.is_whole(str(merged)) else sorted((folder / "rollouts").glob("*.parquet"))
    whole = [str(file) for file in files if records.is_whole(str(file))]
    return [row for file in whole for row in records.read(file, records.ROLLOUTS)]


def _read_json(file: Path) -> Any:
    """JSON data; NaN and the infinities, which are no JSON, are unknown."""
    return json.loads(file.read_text(), parse_constant=lambda _: None) if file.exists() else None


def _read_stages(file: Path) -> list[dict[str, Any]]:
    """The finished stages; a line that a crash cut short is no finished stage."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("}\n")]


def write_text(path: Path, text: str) -> None:
    """Write a file so that readers see all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
