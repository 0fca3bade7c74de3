from tasks.curate.transcript import render
from tests.tasks.test_behaviour import RECOVERED
from tests.tasks.test_behaviour import call
from tests.tasks.test_behaviour import says


def test_turns_and_what_they_got_in_order() -> None:
    assert render(reversed(RECOVERED)) == "\n".join(
        [
            'calls Bash: {"command": "sh a.sh"}',
            "got: Exit code 1\nuse --x",
            'calls Bash: {"command": "sh a.sh --x > out.txt"}',
            "got: ok",
            'calls Bash: {"command": "cat out.txt"}',
            "got: fine",
            "says: Done.",
        ]
    )


def test_side_calls_and_failed_ones_are_left_out() -> None:
    title = {"role": "assistant", "content": "A title"}
    assert render([call(0, title, findings=["side_call:no_tools"]), call(1, title, status="error")]) == ""


def test_a_long_one_keeps_its_ends() -> None:
    found = render([call(number, says("x", f"{number:04} {'y' * 2000}")) for number in range(40)])
    assert len(found) < 8100
    assert "0000 yy" in found and "0039 yy" in found and "0020 yy" not in found
