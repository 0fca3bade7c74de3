"""The flow, whole and real but for the policy, which is a script: Prefect, a real harness, the proxy, the verifier."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter
from prefect.client.schemas.filters import ArtifactFilterKey

from flows.evaluate import evaluate
from flows.evaluate import show
from flows.evaluate_config import EvaluateConfig
from proxy_addons import records
from proxy_addons.errors import ConfigError
from tasks import evaluation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("prefect_server")]

CONFIG: dict[str, Any] = {"run": "ev", "policy": "perfect", "harnesses": ["codex"], "task_count": 2, "k": 2}


def run(runs: Path, **given: Any) -> Path:
    return Path(asyncio.run(evaluate(EvaluateConfig.model_validate(CONFIG | {"runs_dir": str(runs)} | given)))).parent


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def taken_up(finished: Path) -> Path:
    """The same evaluation again, one of its four rollouts torn."""
    torn = sorted((finished / evaluation.STAGE / "rollouts").glob("*.parquet"))[0]
    torn.write_bytes(b"PAR1")
    run(finished.parent, compare="ev")
    return finished


def test_a_perfect_policy_gets_everything_right(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(finished / "report.html")
    assert "100.0%" in capsys.readouterr().out
    cells = evaluation.read_tasks(finished)
    assert [(row["scored"], row["pass_at_1"], row["pass_at_k"], row["pass_hat_k"]) for row in cells] == [
        (2, 1, 1, 1)
    ] * 2
    attempts = records.read(str(finished / "attempts.parquet"), evaluation.ATTEMPTS)
    assert all(row["turns"] >= 2 and row["sampled_tokens"] > 0 and row["wall_s"] > 0 for row in attempts)
    assert {row["format_robustness"] for row in attempts} == {1.0}


def test_a_second_call_runs_what_is_owed_and_compares(taken_up: Path) -> None:
    lines = [json.loads(line) for line in (taken_up / "stages.jsonl").read_text().splitlines()]
    stages = [line for line in lines if line["stage"] == evaluation.STAGE]
    assert [(line["resumed"], line["owed"]) for line in stages] == [(0, 4), (3, 1)]
    compared = json.loads((taken_up / "summary.json").read_text())["comparison"]["codex"]["pass_at_1"]
    assert (compared["difference"]["value"], compared["sign"]["p"]) == (0.0, 1.0)
    assert "Compared with ev" in (taken_up / "report.html").read_text()


async def test_prefect_shows_the_tables(taken_up: Path) -> None:
    ours = ["ev-results", "ev-comparison", "ev-report"]
    async with get_client() as client:
        filtered = await client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=ours)))
    found = {artifact.key: artifact for artifact in filtered}
    assert found.keys() == set(ours)
    assert "pass@2" in str(found["ev-results"].data)


def test_what_cannot_be_compared_with_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="compare: nothing holds no finished evaluation"):
        run(tmp_path, compare="nothing")
    assert not list(tmp_path.iterdir())


def test_a_mistake_is_logged_without_a_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="holds no model"):
        run(tmp_path, model=str(tmp_path / "none"))
    assert "holds no model" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_training_run_of_that_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ev").mkdir()
    (tmp_path / "ev" / "run.json").write_text(json.dumps({"config": {"epochs": 2}}))
    with pytest.raises(ConfigError, match="run 'ev' is a training run: choose another name"):
        run(tmp_path)
