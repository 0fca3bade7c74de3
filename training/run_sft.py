"""A warm start as its own process: `python -m training.run_sft JOB.json` (a `job.SftJob`)."""

import sys
from pathlib import Path
from typing import Any

from proxy_addons.packing import read_calls
from training.job import SftJob
from training.process import run_job
from training.process import write_result
from training.rows import build_rows
from training.sft import fit
from training.sft import shared_openings


def run_sft(job: SftJob) -> dict[str, Any]:
    """Fit the base model to the sampled tokens in `job.calls`; the result is also written to `job.result`."""
    calls = [call for path in job.calls for call in read_calls(path)]
    rows, report = build_rows(
        calls,
        max_row_tokens=job.settings.max_row_tokens,
        need_logprobs=False,
        leave_out=job.settings.leave_out,
    )
    openings = shared_openings(rows, {call["rollout"]: call["harness"] for call in calls})
    numbers = fit(rows, Path(job.base_model), Path(job.out), job.settings, job.seed, openings)
    result = {"rows": report.rows, "refused": dict(report.refused), **numbers, "hf_path": job.out}
    write_result(Path(job.result), result)
    return result


if __name__ == "__main__":
    sys.exit(run_job(sys.argv[1:], SftJob, run_sft))
