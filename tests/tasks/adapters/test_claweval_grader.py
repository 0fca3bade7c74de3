"""Graders of the small checkout, in their own process; the judge is a real HTTP server that says what it is told."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy_addons.errors import VerifierError
from tasks.adapters import claweval
from tasks.adapters.claweval import grader as claweval_grader
from tasks.adapters.claweval.sheet import Sheet
from tasks.rewards.rubric import JudgeConfig
from tests.tasks.adapters import checkout

COUNT = "cmd:python /workspace/fixtures/count.py"
SAID: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a harness."},
    {"role": "user", "content": "Flag it."},
    {"role": "assistant", "tool_calls": [{"id": "1", "name": "Bash", "arguments": '{"command": "ls"}'}]},
    {"role": "tool", "tool_call_id": "1", "content": "report.txt"},
    {"role": "assistant", "content": "It was b."},
]
CALL = {
    "tool_name": "ledger_flag",
    "endpoint_url": "http://localhost:9100/ledger/flag",
    "request_body": {"entry": "b"},
    "response_status": 200,
    "response_body": {"status": "flagged"},
    "latency_ms": 1.0,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "dispatches.json").write_text(json.dumps([CALL]))
    (tmp_path / "audit.json").write_text(json.dumps({"ledger": {"flagged": ["b"]}}))
    return checkout.make(tmp_path / "checkout")


def left(report: str, count: str = "1") -> bytes:
    return json.dumps({"file:/workspace/report.txt": {"content": report}, COUNT: {"stdout": count}}).encode()


async def grade(folder: Path, task: str, snapshot: bytes | None, timeout_s: float = 30.0) -> dict[str, float]:
    return await claweval_grader.grade(folder, task, folder.parent, SAID, snapshot, timeout_s)


async def judged(folder: Path, server: "JudgeServer") -> dict[str, float]:
    sheet = claweval.read(folder)[1].record
    assert isinstance(sheet, Sheet)
    return await claweval.Beside(folder, sheet, server.config).grade(folder.parent, SAID, b"{}", 30.0)


async def test_a_grader_scores_what_was_left(folder: Path) -> None:
    record = claweval.read(folder)[0].record
    assert isinstance(record, Sheet)
    beside = claweval.Beside(folder, record)
    good = await beside.grade(folder.parent, SAID, left("b\n"), 30.0)
    assert good == {
        "reward": 1.0,
        "task_score": 1.0,
        "completion": 1.0,
        "robustness": 1.0,
        "communication": 0.0,
        "safety": 1.0,
    }
    bad = await beside.grade(folder.parent, SAID, left("a\n", "2"), 30.0)
    assert (bad["completion"], bad["task_score"], bad["reward"]) == (0.5, 0.6, 0.0)


async def test_without_a_snapshot_there_is_no_verdict(folder: Path) -> None:
    with pytest.raises(VerifierError, match="took no snapshot"):
        await grade(folder, "T1_find_twice_paid", None)
    with pytest.raises(VerifierError, match="is not JSON"):
        await grade(folder, "T1_find_twice_paid", b"{")
    with pytest.raises(VerifierError, match="gave no verdict: KeyError"):
        await grade(folder, "T1_find_twice_paid", b"{}")


@pytest.mark.parametrize(
    ("score", "said"),
    [
        ("float('nan')", "completion is nan"),
        ("1.5", "completion is 1.5"),
        ("None", "ValidationError"),
        ("exit(3)", "exit 3"),
    ],
)
async def test_a_score_that_is_none_is_no_verdict(folder: Path, score: str, said: str) -> None:
    file = folder / "tasks/T2_judged/grader.py"
    file.write_text(file.read_text().replace("completion=completion", f"completion={score}"))
    file.write_text(file.read_text().replace('judge.evaluate("is it good?")', "1.0"))
    with pytest.raises(VerifierError, match=said):
        await grade(folder, "T2_judged", b"{}")


async def test_a_grader_that_does_not_end_is_killed(folder: Path) -> None:
    (folder / "tasks/T2_judged/grader.py").write_text("while True: pass\n")
    with pytest.raises(VerifierError, match=r"did not come to an end in 2 s and was killed"):
        await grade(folder, "T2_judged", b"{}", timeout_s=2.0)


@pytest.mark.parametrize("line", ['judge.evaluate("is it good?")', "1.0 if judge else 0.0"])
async def test_a_missing_judge_is_no_zero(folder: Path, line: str) -> None:
    """The grader catches what goes wrong with its judge, and would go on with 0 (case O49)."""
    file = folder / "tasks/T2_judged/grader.py"
    file.write_text(
        file.read_text()
        .replace('judge.evaluate("is it good?")', line)
        .replace("except Exception", "except BaseException")
    )
    with pytest.raises(VerifierError, match="it asks a judge, and the run's configuration names none"):
        await grade(folder, "T2_judged", b"{}")


class JudgeServer:
    """Answers every question with `says`, after failing `failures` times with `status`."""

    says = "0.9"
    failures = 0
    status = 500
    asked: list[Any]
    config: JudgeConfig

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((await request.json(), request.headers["Authorization"]))
        if len(self.asked) <= self.failures:
            return web.json_response({"error": {"message": "key secret-key is not good"}}, status=self.status)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": self.says}}
        return web.json_response(
            {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        )


@pytest.fixture
async def judge(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JudgeServer]:
    server = JudgeServer()
    server.asked = []
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setenv("SOME_KEY", "secret-key")
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    server.config = JudgeConfig(base_url=url, model="strict", key_env="SOME_KEY")
    yield server
    await runner.cleanup()


async def test_the_judge_is_asked_at_its_endpoint(folder: Path, judge: JudgeServer) -> None:
    assert (await judged(folder, judge))["completion"] == 0.9
    ((body, key),) = judge.asked
    assert (body["model"], key) == ("strict", "Bearer secret-key")


async def test_a_judge_that_fails_once_is_asked_again(folder: Path, judge: JudgeServer) -> None:
    judge.failures = 1
    assert (await judged(folder, judge))["completion"] == 0.9


async def test_a_judge_that_refuses_is_no_zero_and_the_key_is_not_told(folder: Path, judge: JudgeServer) -> None:
    judge.failures, judge.status = 99, 401
    with pytest.raises(VerifierError, match="the judge failed: AuthenticationError 401") as caught:
        await judged(folder, judge)
    assert "secret" not in str(caught.value)
    assert len(judge.asked) == 1


async def test_a_judge_that_babbles_is_no_zero(folder: Path, judge: JudgeServer) -> None:
    judge.says = "It is quite good."
    with pytest.raises(VerifierError, match="the judge's answer could not be read"):
        await judged(folder, judge)


def test_the_conversation_in_clawevals_form() -> None:
    assert claweval_grader.trace(SAID) == [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "Bash", "input": {"command": "ls"}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "report.txt"}]}
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "It was b."}]},
    ]
    odd = {"role": "assistant", "tool_calls": [{"id": "1", "name": "x", "arguments": "not json"}]}
    assert claweval_grader.trace([odd])[0]["content"][0]["input"] == {"input": "not json"}
