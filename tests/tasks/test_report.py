"""A run's numbers and page from what lies in its folder, whole or not."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxy_addons import records
from proxy_addons.identity import Rollout
from tasks import metrics
from tasks.report import duration
from tasks.report import epoch_table
from tasks.report import number
from tasks.report import percent
from tasks.report import summarise
from tasks.report import write_rendering
from tasks.report import write_report

CONFIG: dict[str, Any] = {"harnesses": ["claude_code", "codex"], "epochs": 2, "note": "<script>alert(1)</script>"}


def row(epoch: int, task: str, sample: int, kind: str = "train", try_: int = 0, **values: Any) -> dict[str, Any]:
    rollout = Rollout("r", epoch, task, sample, try_)
    return {
        "run": "r",
        "epoch": epoch,
        "task": task,
        "sample": sample,
        "try": try_,
        "rollout": rollout.id,
        "kind": kind,
        "harness": CONFIG["harnesses"][sample % 2],
        "reward": 1.0,
        "complete": True,
        "calls": 3,
        "chains": 1,
        "prompt_tokens": 1000,
        "sampled_tokens": 50,
        "findings": [],
    } | values


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    records.write(str(folder / "rollouts.parquet"), records.table(rows, records.ROLLOUTS))


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """A run that has done nothing yet."""
    (tmp_path / "run.json").write_text(json.dumps({"run": "r", "seed": 3, "model": "tiny", "config": CONFIG}))
    return tmp_path


@pytest.fixture
def finished(started: Path) -> Path:
    """Two epochs of 4 rollouts, measured before (1 of 4) and after (3 of 4)."""
    for when, wins in (("before", 1), ("after", 3)):
        rows = [row(0, f"h{i}", 0, f"heldout_{when}", reward=float(i < wins)) for i in range(3)]
        rows.append(row(0, "h3", 1, f"heldout_{when}", reward=float(wins > 3)))
        rows.append(row(0, "h4", 0, f"heldout_{when}", reward=None, error_class="VerifierError"))
        write_rows(started / f"eval-{when}", rows)
    for epoch in (1, 2):
        rows = [
            row(epoch, "a", 0),
            row(
                epoch, "a", 1, reward=0.0, error_class="PolicyFailure", findings=["ids_missing"]
            ),  # as older versions wrote it
            row(epoch, "b", 0, reward=None, error_class="InfrastructureError", complete=False, calls=0),
            row(epoch, "b", 0, try_=1, reward=0.5),
            row(epoch, "b", 1, reward=None, error_class="HarnessError", complete=False, calls=None),
        ]
        write_rows(started / f"epoch-{epoch:03}", rows)
        result = {
            "rows": 6,
            "rollouts": 3,
            "trained_tokens": 120,
            "skipped": False,
            "refused": {"too_long": 2},
            "groups": {"total": 2, "kept": 1, "dropped": {"same_reward": 1}},
            "excluded": {"HarnessError": 1},
            "pg_loss": -0.01,
            "ppo_kl": 0.002,
            "grad_norm": 0.7,
            "logprob_agreement": {"mean": 1e-6, "max": 1e-4, "tokens": 120},
            "alarms": ["12% & more"],
        }
        (started / f"epoch-{epoch:03}" / "train.json").write_text(json.dumps(result))
    stages = [
        {"stage": "serve", "epoch": 0, "seconds": 5.0},
        {"stage": "evaluate_before", "epoch": 0, "seconds": 9.0, "resumed": 0},
        {"stage": "rollout", "epoch": 1, "seconds": 20.0, "resumed": 0},
        {"stage": "rollout", "epoch": 1, "seconds": 10.0, "resumed": 3},
        {"stage": "train", "epoch": 1, "seconds": 4.0},
        {"stage": "rollout", "epoch": 2, "seconds": 30.0, "resumed": 0},
        {"stage": "train", "epoch": 2, "seconds": 6.0},
        {"stage": "evaluate_after", "epoch": 2, "seconds": 8.0, "resumed": 0},
    ]
    (started / "stages.jsonl").write_text("".join(json.dumps(stage) + "\n" for stage in stages))
    return started


def test_summary_of_a_finished_run(finished: Path) -> None:
    summary, _ = summarise(finished)
    assert (summary["run"], summary["seed"], summary["model"], summary["epochs"]) == ("r", 3, "tiny", 2)
    assert (summary["heldout_before"]["k"], summary["heldout_before"]["n"]) == (1, 4)
    assert (summary["heldout_after"]["k"], summary["heldout_after"]["n"]) == (3, 4)
    assert summary["heldout_gain"]["difference"] == pytest.approx(0.5)
    assert summary["rollouts"] == 18
    assert summary["unscored"] == 4  # one verdict missing in each evaluation, one harness failure in each epoch
    assert summary["infra_failures"] == 2
    assert summary["failures"] == {"VerifierError": 2, "PolicyFailure": 2, "HarnessError": 2}
    assert summary["findings"] == {"ids_missing": 2}
    assert summary["trained_tokens"] == 240
    assert summary["samples_per_rollout"] == 2.0  # 12 rows of 6 rollouts trained
    assert summary["resumed_rollouts"] == 3
    assert summary["wall_s"]["rollout"] == 60.0


def test_held_out_success_after_each_epoch(finished: Path) -> None:
    assert summarise(finished)[0]["heldout_by_epoch"] == []
    write_rows(finished / "eval-001", [row(1, f"h{i}", 0, "heldout_001", reward=float(i < 2)) for i in range(4)])
    config = CONFIG | {"epochs": 2}
    (finished / "run.json").write_text(json.dumps({"run": "r", "seed": 3, "model": "tiny", "config": config}))
    summary, epochs = summarise(finished)
    assert [(each["epoch"], each["k"], each["n"]) for each in summary["heldout_by_epoch"]] == [
        (0, 1, 4),
        (1, 2, 4),
        (2, 3, 4),
    ]
    assert summary["rollouts"] == 22
    page = write_report(finished, summary, epochs).read_text()
    assert '<img alt="heldout_by_epoch"' in page and "<th>after epoch</th>" in page
    table = records.read(str(finished / "metrics.parquet"), metrics.METRICS)
    assert [each["heldout_success"] for each in table] == [0.5, 0.75]


def test_epochs_that_overlapped_say_how_old_their_rollouts_were_and_who_waited(finished: Path) -> None:
    assert "rollouts by versions behind" not in epoch_table(summarise(finished)[1])[0]
    line = {"stage": "overlap", "epoch": 2, "seconds": 31.0, "update_waited": 0.125, "slots_idle": 0.0}
    with (finished / "stages.jsonl").open("a") as stages:
        stages.write(json.dumps({**line, "staleness": {"0": 1, "1": 3}}) + "\n")
    summary, epochs = summarise(finished)
    first, second = epoch_table(epochs)
    assert (first["rollouts by versions behind"], first["waiting: update / places"]) == ("–", "– / –")
    assert (second["rollouts by versions behind"], second["waiting: update / places"]) == ("0: 1, 1: 3", "12% / 0%")
    assert second["time"] == "36.0 s"
    assert "Epochs overlap" in write_report(finished, summary, epochs).read_text()


def test_what_was_measured_of_the_engines_is_shown(finished: Path) -> None:
    assert "Not measured." in write_report(finished, *summarise(finished)).read_text()
    engine = {"engine": "http://127.0.0.1:8200", "logprob_kind": "processed", "max_model_len": None}
    (finished / "capability.json").write_text(json.dumps([engine]))
    summary, epochs = summarise(finished)
    assert summary["engines"] == [engine]
    page = write_report(finished, summary, epochs).read_text()
    assert "<th>logprob kind</th>" in page
    assert "<td>http://127.0.0.1:8200</td><td>processed</td><td>–</td>" in page


def test_findings_are_counted_in_calls_and_the_fatal_ones_are_named(started: Path) -> None:
    counts = [{"ids_missing": 3, "truncated": 4, "egress_refused:a.example": 1}, {"truncated": 1, "retokenised": 2}]
    rows = [row(1, "a", n, findings=sorted(own), finding_counts=json.dumps(own)) for n, own in enumerate(counts)]
    write_rows(started / "epoch-001", rows)
    summary, epochs = summarise(started)
    assert summary["findings"] == {"truncated": 5, "ids_missing": 3, "retokenised": 2, "egress_refused:a.example": 1}
    assert epochs[0]["findings"] == {
        "fatal": {"ids_missing": 3},
        "warning": {"truncated": 5, "egress_refused": 1},
        "info": {"retokenised": 2},
    }
    assert epoch_table(epochs)[0]["findings"] == "fatal: 3 ids_missing; warning: 6; info: 2"
    page = write_report(started, summary, epochs).read_text()
    assert '<tr class="alarm"><td>ids_missing</td><td>fatal</td><td>call</td><td>3</td>' in page
    assert "<td>egress_refused:a.example</td><td>warning</td><td>rollout</td><td>1</td>" in page


def test_an_epoch_counts_the_last_try_of_each_slot(finished: Path) -> None:
    epoch = summarise(finished)[1][0]
    assert (epoch["rollouts"], epoch["scored"], epoch["infra_failures"]) == (4, 3, 1)
    assert (epoch["success"]["k"], epoch["success"]["n"]) == (1, 3)
    assert epoch["reward_mean"] == pytest.approx(0.5)
    assert epoch["calls"] == 9
    assert epoch["seconds"] == {"rollout": 30.0, "train": 4.0}


def test_the_harnesses_are_told_apart(finished: Path) -> None:
    by_harness = summarise(finished)[0]["heldout_by_harness"]
    assert (by_harness["claude_code"]["after"]["k"], by_harness["claude_code"]["after"]["n"]) == (3, 3)
    assert (by_harness["codex"]["after"]["k"], by_harness["codex"]["after"]["n"]) == (0, 1)


def test_what_the_template_does_is_told(finished: Path) -> None:
    told = {"renderer": "Qwen3Renderer", "sees_images": False, "reads_tool_calls": True}
    turns = {"tool_loop": "one_row", "new_user_turn": "new_row"}
    assert "The policy's template" not in write_report(finished, *summarise(finished)).read_text()
    write_rendering(finished, {**told, "control_tokens_in_text": "split", "turns": turns})
    text = write_report(finished, *summarise(finished)).read_text()
    assert "<tr><td>new user turn</td><td>new row</td></tr>" in text


def test_the_page_needs_nothing_but_itself(finished: Path) -> None:
    page = write_report(finished, *summarise(finished))
    text = page.read_text()
    assert page == finished / "report.html"
    assert "http" not in text.replace("http-equiv", "")
    assert "25.0% [4.6%, 69.9%] (1 of 4)" in text
    assert text.count("data:image/svg+xml") == 8
    assert "Epoch 2: 12% &amp; more" in text
    assert "<td>groups dropped</td><td>same reward</td><td>1</td>" in text
    assert "<script>" not in text
    assert json.loads((finished / "summary.json").read_text()) == summarise(finished)[0]
    assert [file.name for file in finished.iterdir() if file.name.endswith(".tmp")] == []


def test_the_same_run_writes_the_same_page(finished: Path) -> None:
    first = write_report(finished, *summarise(finished)).read_bytes()
    assert write_report(finished, *summarise(finished)).read_bytes() == first


def test_a_run_that_did_nothing_has_a_report_without_made_up_numbers(started: Path) -> None:
    summary, epochs = summarise(started)
    assert epochs == []
    for name in ("heldout_before", "heldout_after", "calls", "trained_tokens", "samples_per_rollout"):
        assert summary[name] is None
    assert summary["resumed_rollouts"] is None
    assert "Not measured." in write_report(started, summary, epochs).read_text()


def test_a_run_cut_off_in_its_rollouts_counts_the_tries_on_disk(started: Path) -> None:
    for sample in range(3):
        file = started / "epoch-001" / "rollouts" / f"{Rollout('r', 1, 'a', sample).id}.parquet"
        records.write(str(file), records.table([row(1, "a", sample)], records.ROLLOUTS))
    file.write_bytes(file.read_bytes()[:100])
    (started / "stages.jsonl").write_text('{"stage": "serve", "epoch": 0, "seconds": 1.0}\n{"stage": "roll')
    summary, epochs = summarise(started)
    assert (epochs[0]["rollouts"], epochs[0]["trained"], epochs[0]["grad_norm"]) == (2, False, None)
    assert (summary["epochs"], summary["wall_s"]) == (0, {"serve": 1.0})
    assert epoch_table(epochs)[0]["gradient norm"] == "–"
    assert write_report(started, summary, epochs).is_file()


def test_a_number_that_is_not_finite_is_unknown(finished: Path) -> None:
    (finished / "epoch-001" / "train.json").write_text('{"rows": 1, "grad_norm": NaN, "ppo_kl": Infinity}')
    summary, epochs = summarise(finished)
    assert (epochs[0]["grad_norm"], epochs[0]["ppo_kl"]) == (None, None)
    write_report(finished, summary, epochs)


def test_readable_numbers() -> None:
    assert [number(v) for v in (None, 1234567, 0.000123456)] == ["–", "1,234,567", "0.0001235"]
    assert [duration(v) for v in (None, 5.04, 65.0)] == ["–", "5.0 s", "1 min 5 s"]
    assert percent(None) == percent({"k": 0, "n": 0, "rate": None, "lo": None, "hi": None}) == "–"
