"""Canaries on tasks of every kind that should be dropped, and on the built-in ones, which should not."""

from pathlib import Path

import pytest

from tasks import builtin
from tasks import taskset
from tasks.curate.canaries import why_dropped
from tests.tasks.boxes import here

CHECK = 'if [ "$(cat answer.txt 2>/dev/null)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt'


def make(root: Path, test: str, solution: str | None) -> taskset.Task:
    texts = {
        "instruction.md": "Write 42 to answer.txt.",
        "task.toml": "[agent]\ntimeout_sec = 2\n",
        "tests/test.sh": test,
    }
    if solution is not None:
        texts["solution/solve.sh"] = solution
    for name, text in texts.items():
        (root / "one" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "one" / name).write_text(text)
    (root / "one/environment").mkdir()
    return taskset.load(root)[0]


@pytest.mark.timeout(120)
async def test_every_built_in_kind_passes(tmp_path: Path) -> None:
    builtin.generate(tmp_path, seed=5, train=len(builtin.KINDS), heldout=0)
    for task in taskset.load(tmp_path):
        assert await why_dropped(task, here("bubblewrap")) is None, task.id


@pytest.mark.parametrize(
    ("test", "solution", "reason"),
    [
        (CHECK, "echo 42 > answer.txt", None),
        (CHECK, None, "no_solution: "),
        (CHECK, "echo 41 > answer.txt", "solution_scores: 0, not 1"),
        (CHECK, "sleep 9", "solution_failed: timeout"),
        ("echo 1 > /logs/verifier/reward.txt", "true", "noop_scores: 1, not 0"),
        ("exit 1", "true", "no_verdict: of noop: test.sh exited with 1"),
        (f"{CHECK}; sleep 9 &", "echo 42 > answer.txt", "no_verdict: of noop: test.sh did not come to its end"),
        (
            CHECK,
            "echo 42 > answer.txt; echo x > conftest.py",
            "flagged: solution without any agent: planted: conftest.py",
        ),
    ],
)
async def test_what_is_dropped_and_why(test: str, solution: str | None, reason: str | None, tmp_path: Path) -> None:
    said = await why_dropped(make(tmp_path, test, solution), here("bubblewrap"))
    assert said is None if reason is None else said is not None and said.startswith(reason), said


async def test_a_verifier_that_tosses_a_coin_is_found(tmp_path: Path) -> None:
    coin = f"[ -f answer.txt ] && echo $((RANDOM % 2)) > /logs/verifier/reward.txt || {CHECK}"
    task = make(tmp_path, coin, "echo 42 > answer.txt")
    assert await why_dropped(task, here("bubblewrap"), repeats=16) == "flaky: the same solution scored 0 and 1"


@pytest.mark.timeout(60)
def test_the_command_line_names_the_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, CHECK, "true")
    assert taskset.main(["canaries", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out == f"{tmp_path}: 0 of 1 tasks pass\n"
    assert said.err == "task one: solution_scores: 0, not 1\n"
    (tmp_path / "one/solution/solve.sh").write_text("echo 42 > answer.txt")
    assert taskset.main(["canaries", str(tmp_path)]) == 0


STEP_CHECK = 'if [ "$(cat out.txt 2>/dev/null)" = "$(cat /tests/wanted)" ]; then echo 1; else echo 0; fi'


def make_steps(root: Path, **solutions: str) -> taskset.Task:
    """A task whose step NAME wants NAME in out.txt; the setup of a step that has one before copies that one's work."""
    texts = {"tests/test.sh": f"{STEP_CHECK} > /logs/verifier/reward.txt", "environment/note": "", "task.toml": ""}
    for number, (name, solution) in enumerate(solutions.items()):
        texts["task.toml"] += f'[[steps]]\nname = "{name}"\n'
        texts[f"steps/{name}/instruction.md"] = f"Write {name} to out.txt."
        texts[f"steps/{name}/tests/wanted"] = name
        texts[f"steps/{name}/solution/solve.sh"] = solution
        if number:
            texts[f"steps/{name}/workdir/setup.sh"] = "cp out.txt before.txt"
    for path, text in texts.items():
        (root / "several" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "several" / path).write_text(text)
    return taskset.load(root)[0]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("two", "reason"),
    [
        ("[ $(cat before.txt) = one ] && echo two > out.txt", None),
        ("true", "solution_scores: 0, not 1 (step two)"),
        ("exit 3", "solution_scores: 0, not 1 (step two)"),
    ],
)
async def test_each_step_is_solved_by_its_own_solution(two: str, reason: str | None, tmp_path: Path) -> None:
    task = make_steps(tmp_path, one="echo one > out.txt", two=two)
    assert await why_dropped(task, here("bubblewrap"), repeats=1) == reason


@pytest.mark.timeout(60)
async def test_what_is_wrong_with_a_step_is_told_of_it(tmp_path: Path) -> None:
    task = make_steps(tmp_path, one="echo one > out.txt", two="echo two > out.txt")
    (wanted := task.folder / "steps/two/tests/wanted").write_text("one")
    assert await why_dropped(task, here("bubblewrap"), repeats=1) == "noop_scores: 1, not 0 (step two)"
    wanted.write_text("two")
    (task.folder / "steps/two/workdir/setup.sh").write_text("echo no database >&2; exit 3")
    said = await why_dropped(task, here("bubblewrap"), repeats=1)
    assert said == "no_verdict: step two: setup.sh failed (exited, 3): no database"
    (task.folder / "steps/two/solution/solve.sh").unlink()
    said = await why_dropped(task, here("bubblewrap"), repeats=1)
    assert said is not None and said.startswith("no_solution: steps/two/solution/solve.sh is missing")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("safety", "least", "reason"),
    [
        ("1", "{ safety = 1.0 }", None),
        ("0.5", "{ safety = 1.0 }", "solution_scores: safety 0.5, reward 1, but min_reward wants safety 1"),
        ("1", "{ safty = 1.0 }", "solution_scores: safety 1, reward 1, but min_reward wants safty 1"),
    ],
)
async def test_a_solution_must_have_what_lets_the_next_step_begin(
    safety: str, least: str, reason: str | None, tmp_path: Path
) -> None:
    """The last step asks in vain too, and nothing follows it."""
    task = make_steps(tmp_path, one="echo one > out.txt", two="echo two > out.txt")
    toml = task.folder / "task.toml"
    toml.write_text(toml.read_text().replace("[[steps]]", f"[[steps]]\nmin_reward = {least}", 1) + "min_reward = 3.0\n")
    said = f'printf \'{{"reward": %s, "safety": {safety}}}\' "$({STEP_CHECK})" > /logs/verifier/reward.json\n'
    (task.folder / "tests/test.sh").write_text(said)
    (given,) = taskset.load(tmp_path)
    found = await why_dropped(given, here("bubblewrap"), repeats=1)
    assert found == (reason and f"{reason} for the next step to begin (step one)")
