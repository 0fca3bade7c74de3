"""Claude Code and Codex themselves, in each sandbox, against a scripted model; the end signals of two more."""

import json
from pathlib import Path

import pytest

from proxy_addons.conversation import Problem
from tests.tasks.boxes import BACKENDS
from tests.tasks.boxes import here
from tests.tasks.harnesses.real import KEY
from tests.tasks.harnesses.real import URL
from tests.tasks.harnesses.real import drive
from tests.tasks.harnesses.real import installed
from tests.tasks.stub import Stub
from tests.tasks.stub import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]
HARNESSES = pytest.mark.parametrize("name", ["claude_code", "codex"])
TOO_LONG = Problem("context_length", "prompt is too long: 9000 tokens > 8191 maximum")


@BACKENDS
@HARNESSES
async def test_makes_a_file_with_the_smallest_request(name: str, backend: str, tmp_path: Path) -> None:
    async with serving(Stub(commands=("echo one > made.txt", "echo two >> made.txt"))) as stub:
        outcome, end = await drive(here(backend), installed(name), stub, tmp_path)
    assert (end.exit, end.error_class) == ("completed", None), (end, outcome)
    assert (tmp_path / "workspace/made.txt").read_text() == "one\ntwo\n"
    assert len(stub.requests) == 3 and all(URL.endswith(path.split("/v1")[0]) for path in stub.paths)
    first = stub.requests[0]
    assert len(json.dumps(first.get("tools"))) < 3_000
    assert len(json.dumps({k: v for k, v in first.items() if k != "client_metadata"})) < 4_000
    output = outcome.stdout_path.read_text() + outcome.stderr_path.read_text() + json.dumps(stub.requests)
    assert KEY not in output


@pytest.mark.parametrize(
    ("name", "stub", "exit_", "word"),
    [
        ("claude_code", Stub(cut=True), "budget", "output token maximum"),
        ("codex", Stub(cut=True), "budget", "max_output_tokens"),
        ("claude_code", Stub(problem=TOO_LONG), "budget", "prompt_too_long"),
        ("codex", Stub(problem=TOO_LONG), "budget", "context window"),
        ("claude_code", Stub(problem=Problem("overloaded", "engine away")), "failed", "529"),
        ("codex", Stub(problem=Problem("overloaded", "engine away")), "failed", "529"),
        ("claude_code", Stub(problem=Problem("budget", "spent")), "budget", "429"),
        ("codex", Stub(problem=Problem("budget", "spent")), "budget", "429"),
        ("claude_code", Stub(commands=("true",) * 60), "budget", "used its 50 turns"),
        ("mini_swe_agent", Stub(problem=TOO_LONG), "budget", "ContextWindowExceededError"),
        ("mini_swe_agent", Stub(problem=Problem("budget", "spent")), "budget", "RateLimitError"),
        ("openhands", Stub(problem=TOO_LONG), "budget", "NoCondensationAvailable"),
        ("openhands", Stub(problem=Problem("budget", "spent")), "budget", "RateLimitError"),
    ],
)
async def test_its_own_end_signals(name: str, stub: Stub, exit_: str, word: str, tmp_path: Path) -> None:
    async with serving(stub):
        outcome, end = await drive(here("bubblewrap"), installed(name), stub, tmp_path)
    assert end.exit == exit_ and word in end.reason, (end, outcome)
    assert outcome.exit_code == 1


@HARNESSES
async def test_a_proxy_that_is_away(name: str, tmp_path: Path) -> None:
    _, end = await drive(here("bubblewrap"), installed(name), Stub(port=1), tmp_path)
    assert (end.exit, end.error_class) == ("no_call", "HarnessError")
    assert URL in end.reason
