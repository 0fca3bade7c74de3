"""A warm start as its own process: recorded calls in, a Hugging Face folder out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxy_addons import records
from tests.support.calls import Recording
from tests.support.policy import hf_log_probs
from tests.support.policy import save_policy

PROMPT, ANSWER = [1, 2, 3], [10, 11, 12]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_teachers_answer_becomes_likely(tmp_path: Path) -> None:
    base = save_policy(tmp_path / "base")
    rec = Recording()
    rec.call(None, PROMPT, ANSWER, sampled_logprobs=None)
    rec.call(0, [4], [13], status="error")
    other = Recording(1)
    other.call(None, [5, 6], [14], sampled_logprobs=None)
    paths = [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]
    for path, recording in zip(paths, (rec, other), strict=True):
        records.write(path, records.table(recording.calls, records.CALLS))
    job = {
        "base_model": str(base),
        "calls": paths,
        "out": str(tmp_path / "fitted"),
        "result": str(tmp_path / "sft.json"),
        "settings": {
            "opening_steps": 4,
            "steps": 40,
            "batch_rows": 1,
            "threads": 1,
            "device": "cpu",
            "learning_rate": 1e-2,
        },
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = subprocess.run(
        [sys.executable, "-m", "training.run_sft", str(tmp_path / "job.json")],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "sft.json").read_text())
    assert (result["rows"], result["refused"], result["hf_path"]) == (2, {"error": 1}, str(tmp_path / "fitted"))
    assert (result["optimizer_steps"], result["trained_tokens"], len(result["loss"])) == (44, 88, 10)
    assert result["loss"][-1] < result["loss"][0] - 2
    assert min(hf_log_probs(tmp_path / "fitted", PROMPT + ANSWER)[3:]) > -0.5
    assert (tmp_path / "fitted" / "tokenizer.json").exists()
    assert [p.name for p in tmp_path.glob(".tmp-*")] == []
