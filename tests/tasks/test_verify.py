"""Scoring in a clean sandbox, with real sandboxes."""

import os
from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from tasks import verify as module
from tasks.verify import Verdict
from tasks.verify import verify
from tests.tasks.boxes import here


def task(folder: Path, test: str, **files: str) -> Path:
    """A task folder whose test.sh is `test`."""
    for name, text in {"tests/test.sh": test, **files}.items():
        (folder / "task" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "task" / name).write_text(text)
    (folder / "task/environment").mkdir(exist_ok=True)
    return folder / "task"


def workspace(folder: Path, **files: str) -> Path:
    (folder / "done").mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / "done" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "done" / name).write_text(text)
    return folder / "done"


async def score(folder: Path, test: str, timeout_s: float = 15.0) -> Verdict:
    return await verify(task(folder, test), workspace(folder), timeout_s, here("bubblewrap"))


@pytest.mark.parametrize("backend", ["runc", "bubblewrap"])
async def test_test_sh_sees_the_workspace_its_tests_and_nothing_else(backend: str, tmp_path: Path) -> None:
    test = """
        set -e
        test "$(cat answer.txt)" = 42
        test "$(cat $TEST_DIR/help.txt)" = help
        test "$PWD" = /workspace
        touch $TEST_DIR/x 2>/dev/null && exit 9
        (exec 3<>/dev/tcp/127.0.0.1/8080) 2>/dev/null && exit 9
        echo 0.5 > $VERIFIER_REWARD_FILE
        echo half
    """
    folder = task(tmp_path, test, **{"tests/help.txt": "help"})
    done = workspace(tmp_path, **{"answer.txt": "42"})
    verdict = await verify(folder, done, 15, here(backend))
    assert verdict == Verdict(0.5, {}, "test.sh exited with 0; it said: half", ())
    assert verdict.error_class is None
    assert (done / "answer.txt").read_text() == "42"


async def test_harbor_places_and_parts(tmp_path: Path) -> None:
    verdict = await score(tmp_path, 'echo \'{"reward": 0.25, "style": 3}\' > /logs/verifier/reward.json')
    assert (verdict.reward, verdict.parts) == (0.25, {"style": 3.0})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1.5", "reward is '1.5', not a number from 0 to 1"),
        ("-0.1", "reward is '-0.1', not a number from 0 to 1"),
        ("inf", "reward is 'inf', not a number from 0 to 1"),
        ("1_0", "reward is '1_0', not a number from 0 to 1"),
    ],
)
async def test_not_a_reward(text: str, reason: str, tmp_path: Path) -> None:
    verdict = await score(tmp_path, f"echo {text} > $VERIFIER_REWARD_FILE")
    assert (verdict.reward, verdict.reason, verdict.error_class) == (None, reason, "VerifierError")


@pytest.mark.parametrize("text", ["[1]", "{", '{"reward": true}', '{"reward": null}'])
async def test_not_a_reward_json(text: str, tmp_path: Path) -> None:
    verdict = await score(tmp_path, f"printf '{text}' > /logs/verifier/reward.json")
    assert verdict.reward is None and verdict.reason.startswith("reward")


async def test_a_test_that_hangs_gives_no_verdict_even_if_it_wrote_one(tmp_path: Path) -> None:
    verdict = await score(tmp_path, "echo 1 > $VERIFIER_REWARD_FILE; sleep 30", timeout_s=1)
    assert verdict.reward is None
    assert verdict.reason == "test.sh did not come to its end: timeout, killed after 1 s"


async def test_reward_file_is_not_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    verdict = await score(tmp_path, f"ln -s {tmp_path}/one $VERIFIER_REWARD_FILE")
    assert verdict.reward is None and "cannot be read" in verdict.reason


async def test_a_pipe_as_reward_file_does_not_hang(tmp_path: Path) -> None:
    verdict = await score(tmp_path, "mkfifo $VERIFIER_REWARD_FILE")
    assert verdict.reward is None and "not a plain file" in verdict.reason


async def test_no_tests_is_a_configuration_error(tmp_path: Path) -> None:
    folder = task(tmp_path, "true")
    (folder / "tests/test.sh").unlink()
    with pytest.raises(ConfigError, match=r"task task: tests/test\.sh is missing"):
        await verify(folder, workspace(tmp_path), 5, here("bubblewrap"))


async def test_links_special_files_and_modes(tmp_path: Path) -> None:
    done = workspace(tmp_path, **{"sub/run.sh": "echo ran", "secret/x": "x"})
    (done / "sub/run.sh").chmod(0o4755)
    links = {
        "out": "/etc/passwd",
        "up": "../task",
        "sub/in": "run.sh",
        "abs": "/workspace/sub",
        "py": "/usr/bin/python3",
    }
    for name, target in links.items():
        (done / name).symlink_to(target)
    os.mkfifo(done / "pipe")
    test = "sub/run.sh && ls -A . sub && stat -c %a sub/run.sh && echo 1 > $VERIFIER_REWARD_FILE"
    verdict = await verify(task(tmp_path, test), done, 15, here("bubblewrap"))
    assert verdict.reward == 1
    assert set(verdict.flags) == {
        "link out of the workspace: out -> /etc/passwd",
        "link out of the workspace: up -> ../task",
        "special file: pipe",
    }
    assert "755" in verdict.reason


async def test_too_large_a_workspace_is_not_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 2)
    done = workspace(tmp_path, a="", b="", c="")
    verdict = await verify(task(tmp_path, "true"), done, 5, here("bubblewrap"))
    assert verdict.reward is None and "more than 2 files" in verdict.reason


async def test_the_tasks_own_conftest_stays(tmp_path: Path) -> None:
    folder = task(tmp_path, "cat conftest.py; echo 1 > $VERIFIER_REWARD_FILE", **{"environment/conftest.py": "# ours"})
    verdict = await verify(folder, workspace(tmp_path, **{"conftest.py": "# ours"}), 15, here("bubblewrap"))
    assert verdict.flags == () and "# ours" in verdict.reason
    verdict = await verify(folder, workspace(tmp_path, **{"conftest.py": "# theirs"}), 15, here("bubblewrap"))
    assert verdict.flags == ("changed: conftest.py",) and "# ours" in verdict.reason


RULE = "[metadata.reward]\noutcome = '{}'\n"


async def test_partial_credit_is_the_share_of_tests_that_passed(tmp_path: Path) -> None:
    report = '<testsuite><testcase name="a"/><testcase name="b"><failure/></testcase></testsuite>'
    test = f"echo '{report}' > /logs/verifier/junit.xml; echo 1 > $VERIFIER_REWARD_FILE; exit 1"
    folder = task(tmp_path, test, **{"task.toml": RULE.format("tests")})
    verdict = await verify(folder, workspace(tmp_path), 15, here("bubblewrap"))
    assert (verdict.reward, verdict.parts) == (0.5, {"tests": 0.5, "reward": 1.0})


async def test_a_report_that_was_not_written_is_no_verdict(tmp_path: Path) -> None:
    folder = task(tmp_path, "echo 1 > $VERIFIER_REWARD_FILE", **{"task.toml": RULE.format("tests")})
    verdict = await verify(folder, workspace(tmp_path), 15, here("bubblewrap"))
    assert verdict.reward is None and "wrote neither junit.xml nor ctrf.json" in verdict.reason


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("outcome", "answer", "reward"),
    [("exact", "1/2", 1.0), ("exact", "0.5", 0.0), ("math", "0.5", 1.0), ("math", "0.6", 0.0), ("math", None, 0.0)],
)
async def test_an_answer_is_compared(outcome: str, answer: str | None, reward: float, tmp_path: Path) -> None:
    folder = task(tmp_path, "exit 1", **{"task.toml": RULE.format(outcome), "tests/expected.txt": "1/2"})
    done = workspace(tmp_path, **({} if answer is None else {"answer.txt": answer}))
    verdict = await verify(folder, done, 15, here("bubblewrap"))
    assert (verdict.reward, verdict.error_class) == (reward, None)


async def test_an_answer_is_not_read_through_a_link(tmp_path: Path) -> None:
    folder = task(tmp_path, "exit 1", **{"task.toml": RULE.format("exact"), "tests/expected.txt": "x"})
    done = workspace(tmp_path, other="x")
    (done / "answer.txt").symlink_to("other")
    verdict = await verify(folder, done, 15, here("bubblewrap"))
    assert (verdict.reward, verdict.reason) == (0.0, "there is no answer.txt")


async def test_a_program_that_outlives_test_sh_takes_the_verdict_with_it(tmp_path: Path) -> None:
    verdict = await score(tmp_path, "sleep 20 & echo 1 > $VERIFIER_REWARD_FILE")
    assert verdict.reward is None and "outlived test.sh: sleep" in verdict.reason
    assert verdict.flags == ("process outlived test.sh",)
    ended = "sleep 20 & echo 1 > $VERIFIER_REWARD_FILE; kill $!"
    (tmp_path / "task/tests/test.sh").write_text(ended)
    verdict = await verify(tmp_path / "task", tmp_path / "done", 15, here("bubblewrap"))
    assert (verdict.reward, verdict.flags) == (1.0, ())


async def test_names_that_are_no_text_and_very_many_flags(tmp_path: Path) -> None:
    done = workspace(tmp_path)
    for number in range(module.MAX_FLAGS + 3):
        os.mkfifo(os.fsencode(done) + b"/\xff%d" % number)
    verdict = await verify(task(tmp_path, "echo 1 > $VERIFIER_REWARD_FILE"), done, 15, here("bubblewrap"))
    assert verdict.reward == 1 and verdict.flags[-1] == "and 3 more" and len(verdict.flags) == module.MAX_FLAGS + 1
    assert "�" in verdict.flags[0].encode().decode()
