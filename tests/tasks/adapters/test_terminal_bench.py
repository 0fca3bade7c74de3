"""The older terminal-bench format, read and, where nothing is missing, scored in the sandbox like any other task."""

import os
from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from proxy_addons.errors import VerifierError
from tasks import adapters
from tasks.adapters import terminal_bench
from tasks.verify import verify
from tests.tasks.boxes import BACKENDS
from tests.tasks.boxes import here

SHEET = """\
instruction: |-
  Write 42 to answer.txt.
category: puzzles
parser_name: pytest
max_agent_timeout_sec: 300.0
max_test_timeout_sec: 40.0
run_tests_in_same_shell: false
"""
COMPOSE = "services:\n  client:\n    build: .\n"
# What pytest does with PYTEST_ADDOPTS, without needing it in the sandbox.
RUN_TESTS = """\
report=${PYTEST_ADDOPTS#--junitxml=}
test "$(cat answer.txt)" = 42 && result= || result='<failure message="no"/>'
echo "<testsuite><testcase name='a'>$result</testcase><testcase name='b'/></testsuite>" > "$report"
"""


def make(root: Path, name: str = "write-42", sheet: str = SHEET) -> Path:
    folder = root / name
    (folder / "tests").mkdir(parents=True)
    (folder / "task.yaml").write_text(sheet)
    (folder / "docker-compose.yaml").write_text(COMPOSE)
    (folder / "Dockerfile").write_text("FROM base:1\n# all there is\nWORKDIR /app\nCOPY . /app\n")
    (folder / "run-tests.sh").write_text(RUN_TESTS)
    (folder / "tests/test_outputs.py").write_text("def test_it(): ...\n")
    (folder / "solution.sh").write_text("echo 42 > answer.txt\n")
    (folder / "hint.txt").write_text("It is in a book.\n")
    return folder


def test_becomes_a_harbor_task(tmp_path: Path) -> None:
    make(tmp_path / "set")
    (task,) = adapters.load(f"terminal_bench:{tmp_path / 'set'}", tmp_path / "cache")
    assert (task.id, task.kind, task.instruction) == ("write-42", "puzzles", "Write 42 to answer.txt.")
    assert (task.agent_timeout_s, task.verifier_timeout_s) == (300.0, 40.0)
    assert [path.name for path in task.environment.iterdir()] == ["hint.txt"]
    assert sorted(path.name for path in task.tests.iterdir()) == ["run-tests.sh", "test.sh", "test_outputs.py"]
    assert (task.folder / "solution/solve.sh").read_text() == "echo 42 > answer.txt\n"


@BACKENDS
@pytest.mark.parametrize(("answer", "reward"), [("42", 1.0), ("41", 0.0)])
async def test_one_failed_test_of_two_is_a_failure(tmp_path: Path, backend: str, answer: str, reward: float) -> None:
    make(tmp_path / "set")
    (task,) = adapters.load(f"terminal_bench:{tmp_path / 'set'}", tmp_path / "cache")
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/answer.txt").write_text(answer)
    verdict = await verify(task.folder, tmp_path / "workspace", 20.0, here(backend))
    assert (verdict.reward, verdict.reason) == (reward, verdict.reason)


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"task.yaml": SHEET.replace("pytest", "swebench")}, "parser swebench"),
        ({"task.yaml": SHEET.replace("shell: false", "shell: true")}, "shell"),
        ({"docker-compose.yaml": COMPOSE + "  db:\n    image: db:1\n"}, "container db"),
        ({"Dockerfile": "FROM base:1\nRUN make\n"}, "image write-42"),
        ({"run-tests.sh": "apt-get install -y curl\n"}, "network for its tests"),
        ({"run-tests.sh": None}, "file run-tests.sh"),
    ],
)
def test_what_cannot_run_here_says_why(tmp_path: Path, change: dict[str, str | None], missing: str) -> None:
    folder = make(tmp_path)
    for name, text in change.items():
        if text is None:
            os.unlink(folder / name)
        else:
            (folder / name).write_text(text)
    (item,) = terminal_bench.read(tmp_path)
    assert [str(need) for need in item.missing] == [missing]


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    make(tmp_path, "a", "instruction: [\n")
    make(tmp_path, "b", "instruction: ''\n")
    make(tmp_path, "c", "- a\n")
    with pytest.raises(ConfigError) as caught:
        terminal_bench.read(tmp_path)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [f"{name}/task.yaml" for name in "abc"]


def test_the_rule() -> None:
    assert terminal_bench.score({"a": "PASSED", "b": "xfail", "c": "SKIPPED"}) == 1.0
    for word in ("FAILED", "ERROR", "XPASS", "UNKNOWN"):
        assert terminal_bench.score({"a": "PASSED", "b": word}) == 0.0
    with pytest.raises(VerifierError):
        terminal_bench.score({})
