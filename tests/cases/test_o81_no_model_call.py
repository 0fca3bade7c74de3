"""O81, the classification: a harness that ends well without having asked the model is a failure, not a 0."""

from pathlib import Path

import pytest

from tasks import harnesses
from tests.tasks.boxes import here
from tests.tasks.boxes import shell

URL = "http://127.0.0.1:8080/r/run-e000-task-s00-t0"


@pytest.mark.parametrize("name", harnesses.NAMES)
async def test_o81_no_model_call(name: str, tmp_path: Path) -> None:
    harness = harnesses.load(name)
    outcome, _ = await shell(here("bubblewrap"), tmp_path, "sleep 0.1; echo no provider configured >&2")
    end = harnesses.end(harness, outcome, calls=0, base_url=URL)
    assert (end.exit, end.error_class, end.scored) == ("no_call", "HarnessError", False)
    for part in ("no model call", name, URL, harness.SETTINGS, "no provider configured"):
        assert part in end.reason
