"""A supervised fit from end to end: teacher, real harness, proxy, verifier, veRL; the model that comes out loads."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from flows.sft import sft
from flows.sft_config import SftConfig
from flows.sft_config import load_sft_config
from proxy_addons.errors import ConfigError
from tasks.run import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("prefect_server")]

CONFIG: dict[str, Any] = {
    "run": "taught",
    "teacher": "script",
    "harnesses": ["codex"],
    "task_count": 3,
    "attempts": 2,
    "alike": 0.95,
    "keep": 1,
    "fit": {"passes": 1, "batch_rows": 2, "learning_rate": 1e-3, "device": "cpu"},
}


def run(runs: Path, **given: Any) -> Path:
    return Path(asyncio.run(sft(SftConfig.model_validate(CONFIG | {"runs_dir": str(runs)} | given))))


def test_a_model_is_fitted_to_what_succeeded_and_a_second_call_runs_nothing_again(tmp_path: Path) -> None:
    model = run(tmp_path)
    summary = json.loads((tmp_path / "taught" / "summary.json").read_text())
    assert (summary["rollouts"], summary["left_out"]) == (3, {"enough": 3})
    assert summary["fit"]["optimizer_steps"] == 2 and summary["fit"]["rows"] == 3
    before, after = load_file(MODELS / "tiny" / "model.safetensors"), load_file(model / "model.safetensors")
    assert before.keys() == after.keys() and any((before[name] != after[name]).any() for name in before)
    assert (model / "renderer.json").is_file()  # the proxy needs it
    run(tmp_path, keep=2)
    lines = [json.loads(line) for line in (tmp_path / "taught" / "stages.jsonl").read_text().splitlines()]
    assert [(line["resumed"], line["owed"]) for line in lines if line["stage"] == "teach"] == [(0, 6), (6, 0)]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"teacher": "provider"}, "give base_url"),
        ({"provider": {"base_url": "http://h/v1", "model": "m"}}, "give base_url"),
        ({"tasks": "/somewhere"}, "knows the built-in tasks only"),
        ({"fit": {"passes": 0}}, "fit.passes: 0 is refused"),
    ],
)
def test_what_cannot_be_meant_is_one_line(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as found:
        load_sft_config(CONFIG | given)
    assert len(str(found.value).splitlines()) == 1
