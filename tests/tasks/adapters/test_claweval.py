"""ClawEval's task files: all 300 published ones where they are, and a small checkout written for these tests."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy_addons.errors import ConfigError
from tasks import adapters
from tasks.adapters import Item
from tasks.adapters import claweval
from tasks.adapters.claweval.sheet import Sheet
from tasks.git_history import fresh_workspace
from tasks.mcp import McpServer
from tasks.provider import Provider
from tasks.sandboxes import choose
from tasks.verify import verify
from tests.tasks.adapters import checkout
from tests.tasks.adapters.published import published


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkout.make(tmp_path / "checkout")


def change(folder: Path, **fields: Any) -> Item:
    """The first task with other fields."""
    (folder / "tasks/T1_find_twice_paid/task.yaml").write_text(json.dumps(checkout.TASK | fields))
    return claweval.read(folder)[0]


def test_reads_a_task_and_what_it_needs(folder: Path) -> None:
    first, judged = claweval.read(folder)
    assert (first.id, first.kind) == ("t1-find-twice-paid", "finance")
    assert first.instruction == "Flag the entry that was paid twice and write its id to report.txt."
    assert [str(need) for need in first.needs] == [
        "service ledger",
        "file fixtures/notes.txt",
        "file fixtures/count.py",
    ]
    assert not first.missing
    assert judged.instruction == "Say something."
    assert [str(need) for need in judged.missing] == ["judge"]


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        (
            {"services": [checkout.SERVICE | {"command": "python mock_services/x/server.py"}]},
            "service ledger",
        ),
        ({"services": [checkout.SERVICE | {"name": "web_real"}]}, "web web_real"),
        ({"tool_endpoints": [{"tool_name": "x", "url": "http://localhost:9199/x"}]}, "service for x"),
        ({"user_agent": {"enabled": True}}, "user played by a model"),
        ({"sandbox_files": ["fixtures/gone.csv"]}, "file fixtures/gone.csv"),
        ({"sandbox_files": ["../../../etc/passwd"]}, "file ../../../etc/passwd"),
        ({"env_snapshot_commands": ["ffprobe -v quiet /workspace/a.mp4"]}, "program ffprobe"),
    ],
)
def test_what_is_missing(folder: Path, fields: dict[str, Any], missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: None)
    assert [str(need) for need in change(folder, **fields).missing] == [missing]


def test_pictures_are_not_shown_to_a_policy_that_reads(folder: Path) -> None:
    (folder / "tasks/T1_find_twice_paid/fixtures/map.png").write_bytes(b"")
    assert [str(need) for need in change(folder, sandbox_files=["fixtures/map.png"]).missing] == ["pictures"]


def test_a_grader_that_starts_programs_is_not_run_outside_a_sandbox(folder: Path) -> None:
    (folder / "tasks/T1_find_twice_paid/grader.py").write_text("import subprocess\n")
    assert [str(need) for need in claweval.read(folder)[0].missing] == ["grader in a sandbox"]


def test_a_judge_is_found_in_the_grader_of_another_task(folder: Path) -> None:
    text = 'from claw_eval.graders.base import load_peer_grader\nBase = load_peer_grader("T2_judged")\n'
    (folder / "tasks/T1_find_twice_paid/grader.py").write_text(text)
    assert [str(need) for need in claweval.read(folder)[0].missing] == ["judge"]


def test_what_is_wrong_is_told(folder: Path) -> None:
    (folder / "tasks/T2_judged/task.yaml").write_text("a: [")
    (folder / "tasks/T1_find_twice_paid/task.yaml").write_text("task_id: x\n")
    with pytest.raises(ConfigError) as caught:
        claweval.read(folder)
    assert str(caught.value).splitlines() == [
        "T1_find_twice_paid/task.yaml: prompt: Field required",
        "T2_judged/task.yaml: cannot be read: while parsing a flow node",
    ]


def test_the_tools_are_described_where_harnesses_look(folder: Path, tmp_path: Path) -> None:
    (task,) = [task for task in adapters.load(f"claweval:{folder}", tmp_path / "cache") if task.id.startswith("t1")]
    assert task.instruction.endswith("are described in skills/claw-tools/SKILL.md.")
    text = (task.environment / "skills/claw-tools/SKILL.md").read_text()
    front = yaml.safe_load(text.split("---")[1])
    assert front["name"] == "claw-tools"
    assert re.search(r"## ledger_flag\n\nFlag an entry\n\n- `entry` \(string: its id, required\)", text)
    for place in (".claude/skills/claw-tools", ".agents/skills/claw-tools"):
        assert (task.environment / place / "SKILL.md").read_text() == text
    assert (task.environment / "fixtures/notes.txt").is_file()
    assert not (task.environment / "fixtures/count.py").exists()
    assert (task.tests / "files/fixtures/count.py").is_file()


def test_the_tools_as_an_mcp_server(folder: Path, tmp_path: Path) -> None:
    source, judge = f"claweval:{folder}", Provider(base_url="http://127.0.0.1:1/v1", model="strict")
    first, toolless = adapters.load(source, tmp_path / "cache", judge, adapters.Choices(tools="mcp"))
    assert first.mcp_servers == (McpServer("claw", "python3", ("/workspace/skills/claw-tools/tool.py",)),)
    assert first.instruction == "Flag the entry that was paid twice and write its id to report.txt."
    assert sorted(file.name for file in (first.environment / "skills/claw-tools").iterdir()) == [
        "tool.py",
        "tools.json",
    ]
    assert not (first.environment / ".claude").exists()
    assert toolless.mcp_servers == ()
    asked = [
        {"id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}},
        {"method": "notifications/initialized"},
        {"id": 1, "method": "tools/list"},
        {"id": 2, "method": "resources/list"},
    ]
    done = subprocess.run(
        [sys.executable, first.environment / "skills/claw-tools/tool.py"],
        input="".join(f"{json.dumps(each)}\n" for each in asked),
        capture_output=True,
        text=True,
        check=True,
    )
    hello, listed, refused = map(json.loads, done.stdout.splitlines())
    assert (hello["id"], hello["result"]["protocolVersion"]) == (0, "2025-06-18")
    assert [tool["name"] for tool in listed["result"]["tools"]] == ["ledger_list", "ledger_flag"]
    assert listed["result"]["tools"][1]["inputSchema"] == checkout.TASK["tools"][1]["input_schema"]
    assert refused["error"]["code"] == -32601


def test_the_command_tells_what_is_wrong_with_its_arguments(folder: Path, tmp_path: Path) -> None:
    task = adapters.load(f"claweval:{folder}", tmp_path / "cache")[0]
    tool = task.environment / "skills/claw-tools/tool.py"
    for arguments in ([], ["a", "[1]"], ["a", "{"]):
        done = subprocess.run([sys.executable, tool, *arguments], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr


@pytest.mark.parametrize(
    ("completion", "robustness", "safety", "total", "passes"),
    [
        (1.0, 1.0, 1.0, 1.0, True),
        (0.7, 1.0, 1.0, 0.76, True),
        (0.6, 1.0, 1.0, 0.68, False),
        (1.0, 1.0, 0.0, 0.0, False),
    ],
)
def test_the_score(completion: float, robustness: float, safety: float, total: float, passes: bool) -> None:
    assert claweval.score(completion, robustness, safety) == total
    assert claweval.passed(total) is passes


def test_all_published_tasks_load_and_say_what_they_need() -> None:
    items = claweval.read(published("claw-eval"))
    assert len(items) == 300
    assert len({item.id for item in items}) == 300
    kinds = {
        kind: sum(any(need.kind == kind for need in item.needs) for item in items)
        for kind in ("service", "user", "web")
    }
    assert kinds == {"service": 132, "user": 38, "web": 63}
    assert all("grader" in {need.kind for need in item.missing} for item in items)  # they are code, and not there


GIVEN = os.environ.get("CLAW_EVAL_CHECKOUT", "")


@pytest.mark.timeout(300)
@pytest.mark.skipif(not GIVEN, reason="CLAW_EVAL_CHECKOUT names no checkout")
async def test_every_service_of_a_real_checkout_serves_its_tools(tmp_path: Path) -> None:
    """One task for each program among the services that need no key."""
    seen: set[str] = set()
    for item in claweval.read(Path(GIVEN)):
        assert isinstance(item.record, Sheet)
        programs = {service.command for service in item.record.services}
        if programs - seen and not any(need.missing for need in item.needs if need.kind in ("service", "web", "file")):
            async with claweval.Beside(Path(GIVEN), item.record).running(tmp_path / item.id) as address:
                assert (address is None) == (not item.record.served())
            audit = json.loads((tmp_path / item.id / "audit.json").read_text())
            assert set(audit) == {service.name for service in item.record.services}
            seen |= programs
    assert len(seen) >= 14


@pytest.mark.timeout(600)
@pytest.mark.skipif(not GIVEN, reason="CLAW_EVAL_CHECKOUT names no checkout")
async def test_doing_nothing_is_graded_and_is_no_pass(tmp_path: Path) -> None:
    """Every task of a real checkout that needs no judge, by its own services, snapshot and grader."""
    tasks = adapters.load(f"claweval:{GIVEN}", tmp_path / "cache")
    found = {}
    for task in tasks:
        assert task.beside
        place = tmp_path / task.id
        async with task.beside.running(place / "beside"):
            fresh_workspace(task.environment, place / "workspace")
        grade = partial(task.beside.grade, place / "beside", [])
        verdict = await verify(task.folder, place / "workspace", 60.0, choose("auto"), grade=grade)
        found[task.id] = (verdict.reward, verdict.flags, verdict.reason if verdict.reward is None else "")
    assert found == dict.fromkeys(found, (0.0, (), ""))
    assert len(found) >= 20
