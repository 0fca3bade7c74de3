"""From a job file to an exit code and one line, and results that are whole and valid JSON."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from training.process import run_job
from training.process import write_result


class Job(BaseModel):
    number: int


def raises(error: Exception) -> Callable[[Job], None]:
    def work(job: Job) -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("work", "code", "line"),
    [
        (lambda job: None, 0, ""),
        (raises(ConfigError("resume: wrong")), 2, "ConfigError: resume: wrong\n"),
        (raises(InfrastructureError("disk")), 3, "InfrastructureError: disk\n"),
        (raises(FileNotFoundError("calls.parquet is gone")), 3, "InfrastructureError: calls.parquet is gone\n"),
    ],
)
def test_a_failure_is_a_code_and_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], work: Callable[[Job], None], code: int, line: str
) -> None:
    (tmp_path / "job.json").write_text('{"number": 1}')
    assert run_job([str(tmp_path / "job.json")], Job, work) == code
    assert capsys.readouterr().err == line


def test_a_job_that_does_not_validate_names_its_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.json").write_text('{"number": "one"}')
    assert run_job([str(tmp_path / "job.json")], Job, lambda job: None) == 2
    assert "job.json: number: Input should be a valid integer" in capsys.readouterr().err
    assert run_job([], Job, lambda job: None) == 2
    assert capsys.readouterr().err == "ConfigError: give one argument, the job file\n"


def test_a_crash_of_another_kind_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"number": 1}')
    with pytest.raises(ZeroDivisionError):
        run_job([str(tmp_path / "job.json")], Job, raises(ZeroDivisionError()))


def test_a_result_is_valid_json(tmp_path: Path) -> None:
    write_result(tmp_path / "deep" / "result.json", {"a": math.nan, "b": {"c": [1.5, math.inf]}, "d": (1, 2)})
    assert json.loads((tmp_path / "deep" / "result.json").read_text()) == {
        "a": None,
        "b": {"c": [1.5, None]},
        "d": [1, 2],
    }
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["result.json"]
