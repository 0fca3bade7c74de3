"""A small checkout in ClawEval's shape, written for these tests: one service, its grader, and what that imports."""

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

LEDGER = """\
    import json
    import os
    import pathlib

    import uvicorn
    from fastapi import FastAPI
    from fastapi import HTTPException
    from pydantic import BaseModel

    app = FastAPI()
    entries = json.loads(pathlib.Path(os.environ["LEDGER_FIXTURES"]).read_text())
    log, flagged = [], []


    class Flag(BaseModel):
        entry: str


    @app.post("/ledger/entries")
    def listing():
        log.append({"endpoint": "/ledger/entries"})
        return {"entries": entries}


    @app.post("/ledger/flag")
    def flag(asked: Flag):
        if asked.entry not in {entry["id"] for entry in entries}:
            raise HTTPException(404, "no such entry")
        flagged.append(asked.entry)
        return {"status": "flagged"}


    @app.get("/ledger/audit")
    def audit():
        return {"calls": log, "flagged": flagged}


    @app.post("/ledger/reset")
    def reset():
        flagged.clear()
        return {}


    if __name__ == "__main__":
        uvicorn.run(app, host="0.0.0.0", port=int(os.environ.get("PORT", "9100")))
"""

SERVICE = {
    "name": "ledger",
    "command": "python mock_services/ledger/server.py",
    "port": 9100,
    "health_check": "http://localhost:9100/ledger/entries",
    "reset_endpoint": "http://localhost:9100/ledger/reset",
    "env": {"LEDGER_FIXTURES": "tasks/T1_find_twice_paid/fixtures/ledger.json"},
}

TASK: dict[str, Any] = {
    "task_id": "T1_find_twice_paid",
    "task_name": "Find what was paid twice",
    "category": "finance",
    "prompt": {"text": "Flag the entry that was paid twice and write its id to report.txt.", "language": "en"},
    "services": [SERVICE],
    "tools": [
        {"name": "ledger_list", "description": "All entries", "input_schema": {"type": "object", "properties": {}}},
        {
            "name": "ledger_flag",
            "description": "Flag an entry",
            "input_schema": {
                "type": "object",
                "properties": {"entry": {"type": "string", "description": "its id"}},
                "required": ["entry"],
            },
        },
    ],
    "tool_endpoints": [
        {"tool_name": "ledger_list", "url": "http://localhost:9100/ledger/entries", "method": "POST"},
        {"tool_name": "ledger_flag", "url": "http://localhost:9100/ledger/flag", "method": "POST"},
    ],
    "environment": {"timeout_seconds": 60, "max_turns": 20, "env_snapshot_timeout": 5},
    "sandbox_files": ["fixtures/notes.txt"],
    "sandbox_grader_files": ["fixtures/count.py"],
    "env_snapshot_commands": ["python /workspace/fixtures/count.py"],
    "env_snapshot_files": ["/workspace/report.txt"],
}

GRADER = """\
    from claw_eval.graders.base import AbstractGrader
    from claw_eval.models.trace import DimensionScores


    class TwicePaid(AbstractGrader):
        def grade(self, messages, dispatches, task, audit_data=None, judge=None, env_snapshot=None):
            scores = DimensionScores()
            report = env_snapshot["file:/workspace/report.txt"].get("content", "").strip()
            counted = env_snapshot["cmd:python /workspace/fixtures/count.py"]["stdout"].strip()
            flagged = audit_data["ledger"]["flagged"] == ["b"] and dispatches[-1].tool_name == "ledger_flag"
            said = "b" in messages[-1].message.text
            scores.completion = (flagged + (report == "b") + (counted == "1") + said) / 4
            scores.robustness = 1.0 if all(d.response_status < 400 for d in dispatches) else 0.5
            return scores
"""

JUDGED = """\
    from claw_eval.graders.base import AbstractGrader
    from claw_eval.models.trace import DimensionScores


    class Judged(AbstractGrader):
        def grade(self, messages, dispatches, task, audit_data=None, judge=None, env_snapshot=None):
            try:
                completion = judge.evaluate("is it good?")
            except Exception:
                completion = 0.0
            return DimensionScores(completion=completion, robustness=1.0)
"""

PACKAGE = {
    "__init__.py": "",
    "models/__init__.py": "",
    "models/task.py": """\
        from pathlib import Path

        import yaml
        from pydantic import BaseModel


        class Prompt(BaseModel):
            text: str


        class TaskDefinition(BaseModel):
            task_id: str
            prompt: Prompt
            local_grader_files: list[str] = []

            @classmethod
            def from_yaml(cls, path):
                return cls.model_validate(yaml.safe_load(Path(path).read_text()))
    """,
    "models/trace.py": """\
        from typing import Any

        from pydantic import BaseModel


        class DimensionScores(BaseModel):
            completion: float = 0.0
            robustness: float = 0.0
            communication: float = 0.0
            safety: float = 1.0


        class Message(BaseModel):
            role: str
            content: list[dict[str, Any]]

            @property
            def text(self):
                return "".join(block.get("text", "") for block in self.content)


        class TraceMessage(BaseModel):
            trace_id: str
            message: Message


        class ToolDispatch(BaseModel):
            trace_id: str
            tool_use_id: str
            tool_name: str
            endpoint_url: str
            request_body: dict[str, Any]
            response_status: int
            response_body: Any
            latency_ms: float
    """,
    "graders/__init__.py": "",
    "graders/base.py": "class AbstractGrader:\n    pass\n",
    "graders/registry.py": """\
        import importlib.util

        from claw_eval.graders.base import AbstractGrader


        def get_grader(task_id, tasks_dir, task_dir):
            spec = importlib.util.spec_from_file_location("grader", task_dir / "grader.py")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            found = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, AbstractGrader)]
            return next(v for v in found if v is not AbstractGrader)()
    """,
    "graders/llm_judge.py": """\
        import time


        class LLMJudge:
            def __init__(self, model_id, api_key, base_url):
                self.model_id = model_id
                self.client = None

            def evaluate(self, question):
                for _ in range(30):
                    try:
                        asked = [{"role": "user", "content": question}]
                        reply = self.client.chat.completions.create(model=self.model_id, messages=asked)
                        return float(reply.choices[0].message.content)
                    except Exception:
                        time.sleep(60)
                return 0.0
    """,
}


def make(root: Path) -> Path:
    """Write the checkout; its second task's grader asks a judge."""
    for path, text in PACKAGE.items():
        _write(root / "src/claw_eval" / path, dedent(text))
    _write(root / "mock_services/ledger/server.py", dedent(LEDGER))
    folder = root / "tasks/T1_find_twice_paid"
    _write(folder / "task.yaml", json.dumps(TASK))  # JSON is YAML
    _write(folder / "grader.py", dedent(GRADER))
    entries = [{"id": "a", "paid": 5}, {"id": "b", "paid": 10}]
    _write(folder / "fixtures/ledger.json", json.dumps(entries))
    _write(folder / "fixtures/notes.txt", "Two entries this month.\n")
    count = "import pathlib\nprint(sum(1 for line in pathlib.Path('/workspace/report.txt').open() if line.strip()))\n"
    _write(folder / "fixtures/count.py", count)
    judged = {"task_id": "T2_judged", "task_name": "Judged", "prompt": {"text": "Say something."}}
    _write(root / "tasks/T2_judged/task.yaml", json.dumps(judged))
    _write(root / "tasks/T2_judged/grader.py", dedent(JUDGED))
    return root


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
