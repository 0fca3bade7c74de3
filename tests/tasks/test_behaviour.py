"""The axes on traces whose value is plain, and on the shapes in which harnesses tell an exit code."""

import json
from typing import Any

import pytest

from tasks.behaviour import Action
from tasks.behaviour import Trace
from tasks.behaviour import axes
from tasks.behaviour import read_command
from tasks.behaviour import read_trace
from tasks.behaviour import result_failed


def call(number: int, *messages: dict[str, Any], **given: Any) -> dict[str, Any]:
    text = json.dumps(list(messages))
    return {"call": number, "status": "ok", "messages_delta": text, "findings": []} | given


def says(id_: str, command: str, name: str = "Bash") -> dict[str, Any]:
    arguments = json.dumps({"command": command})
    return {"role": "assistant", "tool_calls": [{"id": id_, "name": name, "arguments": arguments}]}


def result(id_: str, text: str, *flags: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": text, "flags": list(flags)}


USER = {"role": "user", "content": "Get a.sh to run."}
DONE = {"role": "assistant", "content": "Done."}
RECOVERED = (
    call(0, USER, says("a", "sh a.sh")),
    call(1, result("a", "Exit code 1\nuse --x", "tool_error"), says("b", "sh a.sh --x > out.txt")),
    call(2, result("b", "ok"), says("c", "cat out.txt")),
    call(3, result("c", "fine"), DONE),
)


def act(*tools: str, changes: bool = False, failed: bool | None = False) -> Action:
    return Action(frozenset(tools), changes, failed)


def trace(*actions: Action, succeeded: bool = True, turns: int = 3, malformed: int = 0) -> Trace:
    return Trace(succeeded, turns, malformed, actions)


def test_a_recorded_attempt_is_read_whole() -> None:
    found = read_trace(reversed(RECOVERED), True)
    assert found.turns == 4
    assert found.actions == (act("sh", failed=True), act("sh", changes=True), act("cat"))
    (values,) = axes([found])
    assert (values.tool_coverage, values.self_verification, values.error_recovery) == (1.0, 1.0, 1.0)
    assert (values.step_efficiency, values.format_robustness) == (1.0, 1.0)


def test_a_branch_that_repeats_the_history_counts_no_action_twice() -> None:
    whole = [USER, says("a", "sh a.sh"), result("a", "ok"), says("b", "cat out.txt")]
    found = read_trace([RECOVERED[0], call(1, *whole), call(2, result("b", "fine"), DONE)], True)
    assert found.actions == (act("sh"), act("cat"))


def test_side_calls_and_calls_without_an_answer_are_no_turns() -> None:
    aside = call(4, USER, says("x", "rm -r /"), findings=["side_call:no_tools"])
    lost = call(5, USER, says("y", "rm -r /"), status="abandoned")
    assert read_trace([*RECOVERED, aside, lost], True) == read_trace(RECOVERED, True)


def test_a_call_whose_result_was_never_seen_neither_failed_nor_worked() -> None:
    assert read_trace(RECOVERED[:1], False).actions == (act("sh", failed=None),)


def test_nothing_done_is_undefined_and_not_0() -> None:
    (values,) = axes([Trace(False, 0, 0, ())])
    assert set(vars(values).values()) == {None}


def test_tool_coverage_is_over_what_every_success_used() -> None:
    solved = [trace(act("grep", "cat"), act("sh")), trace(act("grep"), act("sh"), act("ls"))]
    half = trace(act("grep"), succeeded=False)
    assert [a.tool_coverage for a in axes([*solved, half])] == [1.0, 1.0, 0.5]
    assert axes([half])[0].tool_coverage is None


@pytest.mark.parametrize(
    ("actions", "value"),
    [
        ([act("cat")], None),
        ([act("cat"), act("sed", changes=True)], 0.0),
        ([act("sed", changes=True), act("cat")], 1.0),
        ([act("sed", changes=True), act("cat"), act("touch", changes=True)], 0.0),
        ([act("sed", changes=True), act("cat", failed=None)], 0.0),
        ([act("sed", changes=True), act("pytest", failed=True)], 1.0),
    ],
)
def test_self_verification_is_a_look_after_the_last_change(actions: list[Action], value: float | None) -> None:
    assert axes([trace(*actions)])[0].self_verification == value


@pytest.mark.parametrize(
    ("actions", "succeeded", "value"),
    [
        ([act("sh")], True, None),
        ([act("sh", failed=True)], False, 0.0),
        ([act("sh", failed=True), act("ls")], False, 0.0),
        ([act("sh", failed=True), act("ls"), act("sh")], False, 1.0),
        ([act("sh", failed=True), act("touch")], True, 1.0),
        ([act("sh", failed=True), act("sh", failed=True), act("cat", failed=True), act("sh")], False, 2 / 3),
        ([act("touch"), act("sh", failed=True)], True, 0.0),
    ],
)
def test_error_recovery(actions: list[Action], succeeded: bool, value: float | None) -> None:
    assert axes([trace(*actions, succeeded=succeeded)])[0].error_recovery == value


STALE = ("ann 15", "last entry: 2025-03-01")
TRUE = "ann 90\nlast entry: 2025-04-02"
MISLED = (
    call(0, USER, says("a", "sh totals.sh")),
    call(1, result("a", "ann 15\nbob 7\nlast entry: 2025-03-01"), says("b", "tail -n 1 data.csv")),
    call(2, result("b", "2025-04-02,ann,75"), says("c", "sh totals.sh --fresh")),
    call(3, result("c", TRUE), says("d", "echo 90 > answer.txt")),
    call(4, result("d", ""), DONE),
)


def test_a_misleading_result_is_recovered_from_where_the_attempt_succeeded_all_the_same() -> None:
    """By hand: one call misled, none failed. Solved 1/1, not solved 0/1; never seen, undefined."""
    solved, fooled = (read_trace(MISLED, succeeded, STALE) for succeeded in (True, False))
    assert [action.misled for action in solved.actions] == [True, False, False, False]
    assert [values.error_recovery for values in axes([solved, fooled])] == [1.0, 0.0]
    careful = read_trace(
        [call(0, USER, says("a", "sh totals.sh --fresh")), call(1, result("a", TRUE), DONE)], False, STALE
    )
    assert axes([careful])[0].error_recovery is None
    assert axes([read_trace(MISLED, True)])[0].error_recovery is None  # a task that names nothing


def test_failed_and_misleading_results_are_counted_together_each_call_once() -> None:
    """By hand, not solved: `sh` failed and a later `sh` did not, made good; `sh` misled, not made good; `cat` failed
    with the misleading text in it, a failure, and no `cat` follows: 1 of 3. Solved: 2 of 3, nothing follows it."""
    rows = (
        call(0, USER, says("a", "sh totals.sh")),
        call(1, result("a", "Exit code 1\nno data", "tool_error"), says("b", "sh totals.sh")),
        call(2, result("b", "ann 15"), says("c", "cat kept")),
        call(3, result("c", "Exit code 1\nann 15", "tool_error"), DONE),
    )
    found = [read_trace(rows, succeeded, STALE) for succeeded in (False, True)]
    assert [values.error_recovery for values in axes(found)] == [1 / 3, 2 / 3]


def test_step_efficiency_is_against_the_shortest_success() -> None:
    found = axes([trace(*[act("sh")] * 2), trace(*[act("sh")] * 4), trace(act("sh"), succeeded=False)])
    assert [a.step_efficiency for a in found] == [1.0, 0.5, None]


def test_format_robustness_is_the_share_of_turns_in_form() -> None:
    rows = [*RECOVERED[:3], call(3, DONE, findings=["truncated", "tool_call_unreadable", "retokenised"])]
    (values,) = axes([read_trace(rows, True)])
    assert values.format_robustness == 0.75


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("Chunk ID: 890ed4\nWall time: 0.0000 seconds\nProcess exited with code 1\nOutput:\nno", True),
        ("Chunk ID: 890ed4\nWall time: 0.0000 seconds\nProcess exited with code 0\nOutput:\nno", False),
        ("Exit code: 2\nWall time: 1 seconds\nOutput:\n", True),
        ("<returncode>1</returncode>\n<output>\n</output>", True),
        ('{"output": "", "metadata": {"exit_code": 127}}', True),
        ("Command: ls\nOutput: a\nExit Code: 0", False),
        ("a\n[The command completed with exit code 2.]", True),
        ("x" * 5000 + " exit code 7 " + "x" * 5000, False),
        ("hello", False),
        ("", False),
    ],
)
def test_an_exit_code_is_found_as_harnesses_write_it(text: str, failed: bool) -> None:
    assert result_failed({"content": text}) is failed


@pytest.mark.parametrize(
    ("command", "programs", "changes"),
    [
        ("cat a.txt", {"cat"}, False),
        ("cd x && /usr/bin/grep -rl 'a > b' . 2>/dev/null | head -1", {"cd", "grep", "head"}, False),
        ("echo a > b", {"echo"}, True),
        ("python - <<'E'\nrm -r x\nE", {"python"}, False),
        ("LC_ALL=C sed -i s/a/b/ f", {"sed"}, True),
        ("sed -n 1p f 2>&1", {"sed"}, False),
        (["bash", "-lc", "touch x; ls"], {"touch", "ls"}, True),
        ("echo 'open", {"echo"}, False),
        ("", set(), False),
    ],
)
def test_a_command_is_read(command: str | list[str], programs: set[str], changes: bool) -> None:
    assert read_command(command) == (frozenset(programs), changes)


def test_editors_change_things_by_some_of_their_commands() -> None:
    tools = [("str_replace_editor", {"command": "view"}), ("str_replace_editor", {"command": "create"}), ("Write", {})]
    turn = {
        "role": "assistant",
        "tool_calls": [{"id": n, "name": n, "arguments": json.dumps(given)} for n, given in tools],
    }
    assert [action.changes for action in read_trace([call(0, turn)], False).actions] == [False, True, True]
    broken = {"role": "assistant", "tool_calls": [{"id": "a", "name": "Bash", "arguments": '{"comm'}]}
    assert read_trace([call(0, broken)], False).actions == (act("Bash", failed=None),)
