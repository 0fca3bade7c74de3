"""Long rollouts of real harnesses: many tools, calls side by side, failures, text that is spelled in many ways.

Chains are agents, every sampled token is trained once, and none that we encoded is.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from proxy_addons import records
from proxy_addons.conversation import Message
from tasks import builtin
from tasks import harnesses
from tasks import taskset
from tasks.harnesses import claude_code
from tasks.rollout import fill
from tests.tasks.arena import arena
from tests.tasks.arena import slot
from tests.tasks.harnesses.real import installed
from tests.tasks.harnesses.scripts import Changed
from tests.tasks.harnesses.scripts import Scripted
from tests.tasks.harnesses.scripts import say
from tests.tasks.harnesses.truth import assert_trained_once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TEXT = 'naïve “quotes” \\ "plain" — 日本語 🦀 \t the end\n'


def spelled(value: dict[str, object]) -> str:
    """JSON as a sampler might write it: spaces where nobody needs them, every character beyond ASCII as an escape."""
    return json.dumps(value, indent=1, ensure_ascii=True, separators=(" ,", " : "))


def plain(value: dict[str, object]) -> str:
    return json.dumps(value, ensure_ascii=False)


def shell_turns(tool: str, key: str) -> list[Message]:
    """What every harness's shell tool is asked to do."""
    write = f"cat > the.txt <<'END'\n{TEXT}END\n"
    return [
        say("", (tool, spelled({key: write}))),
        say("Let me read the file, twice.", *[(tool, plain({key: "cat the.txt"}))] * 2),
        say("", (tool, plain({key: "cat nothing.txt; exit 3"}))),
        say("  Spaces around, and a line\n\nbelow. ", (tool, spelled({key: "printf 'hello\\x01\\n'; echo é >&2"}))),
        say("", (tool, plain({key: "seq 1 3000"}))),
        say("", (tool, plain({key: "mkdir -p a && echo 1 > a/x"})), (tool, plain({key: "false"}))),
        say("Again.", (tool, plain({key: "cat the.txt"}))),
        say("", ("no_such_tool", plain({"a": "b"}))),
        say("", (tool, plain({"wrong": True}))),
        say("", (tool, spelled({key: "true"}))),
    ]


def claude_turns() -> list[Message]:
    the, new = "/workspace/the.txt", "/workspace/ünï.txt"
    return [
        *shell_turns("Bash", "command"),
        say("", ("Read", spelled({"file_path": the}))),
        say(
            "Three at a time.",
            ("Read", plain({"file_path": the})),
            ("Edit", plain({"file_path": the, "old_string": "the end", "new_string": "the “end”"})),
            ("Edit", spelled({"file_path": new, "old_string": "", "new_string": TEXT})),
        ),
        say("", ("Edit", plain({"file_path": the, "old_string": "is not there", "new_string": "x"}))),
        say("", ("Read", plain({"file_path": the, "limit": 1})), ("Bash", plain({"command": "cat *.txt"}))),
        say("Done, finally."),
    ]


def codex_turns() -> list[Message]:
    return [
        *shell_turns("exec_command", "cmd"),
        say("", ("exec_command", plain({"cmd": "read line; echo got $line", "tty": True, "yield_time_ms": 300}))),
        say("", ("write_stdin", plain({"session_id": 1, "chars": "hé\n"}))),
        say("", ("exec_command", plain({"cmd": "cat the.txt", "workdir": "/workspace"}))),
        say("Done, finally."),
    ]


def openclaw_turns() -> list[Message]:
    edit = {"oldText": "the end", "newText": "the “end”"}
    return [
        *shell_turns("exec", "command"),
        say("", ("write", spelled({"path": "ünï.txt", "content": TEXT})), ("ls", plain({}))),
        say("", ("read", plain({"path": "the.txt"})), ("read", plain({"path": "ünï.txt"}))),
        say("", ("edit", spelled({"path": "the.txt", "edits": [edit]}))),
        say("", ("read", plain({"path": "the.txt"}))),
        say("Done, finally."),
    ]


def with_three_tools(instruction: str, base_url: str, key: str, model: str) -> tuple[str, ...]:
    argv = list(claude_code.command(instruction, base_url, key, model))
    argv[argv.index("--tools") + 1] = "Bash,Read,Edit"
    return tuple(argv)


def changed(name: str) -> harnesses.Harness:
    harness = installed(name)
    return Changed(name, command=with_three_tools) if name == "claude_code" else harness  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("name", "turns"),
    [("claude_code", claude_turns), ("codex", codex_turns), ("openclaw", openclaw_turns)],
)
async def test_a_long_rollout_is_one_chain_of_sampled_tokens(
    name: str, turns: Callable[[], list[Message]], tmp_path: Path
) -> None:
    builtin.generate(tmp_path / "tasks", 1, 1, 0)
    task = replace(taskset.load(tmp_path / "tasks")[0], agent_timeout_s=200.0)
    policy = Scripted(main=turns())
    async with arena(tmp_path, policy, max_model_len=400_000, timeout_s=200.0) as place:
        row = await fill(slot(task, changed(name)), place)
    calls = records.read(row["calls_path"], records.CALLS)
    said = [(call["chain"], call["status"], call["findings"]) for call in calls]
    assert (row["exit"], row["error_class"], row["complete"]) == ("completed", None, True), (row, said)
    assert len(calls) == len(policy.main) >= 12, policy.heard
    assert (row["chains"], {call["agent"] for call in calls}) == (1, {None}), said
    assert_trained_once(calls, policy, tmp_path / "model")
    heard = "\n".join(policy.heard)
    assert all(word in heard for word in ("日本語 🦀", "No such file", "hello", "é", "2999")), heard
