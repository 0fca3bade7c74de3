"""One grading by a ClawEval checkout, as a process of its own: the case as JSON on standard input, the scores as JSON
on standard output, `{"trouble": why}` where there is no verdict. Imports the checkout, nothing of ours.
"""

import base64
import inspect
import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from typing import NoReturn

TRIES = 4
_sleep = time.sleep


class NoVerdict(BaseException):
    """Ends a grading. Not an `Exception`, because graders catch those and go on with a 0."""


class State:
    """Whether a verdict is still possible: once it is not, no way of catching the exception makes it so."""

    trouble: str | None = None

    @classmethod
    def fail(cls, why: str) -> NoReturn:
        cls.trouble = cls.trouble or why
        raise NoVerdict(why)


class NoJudge:
    """In the place of a judge: a grader that so much as asks whether there is one has no verdict without it."""

    def __getattr__(self, name: str) -> NoReturn:
        State.fail("it asks a judge, and the run's configuration names none")

    def __bool__(self) -> NoReturn:
        State.fail("it asks a judge, and the run's configuration names none")


class Client:
    """The OpenAI client of ClawEval's judge, whose failure is told instead of swallowed. `client.chat.completions`."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.chat = self.completions = self

    def create(self, **asked: Any) -> Any:
        for attempt in range(TRIES):
            try:
                return self._real.chat.completions.create(**asked)
            except Exception as error:  # whatever the client raises; its text may hold a part of the key
                status = getattr(error, "status_code", None)
                why = f"{type(error).__name__}{f' {status}' if status else ''}"
                if attempt + 1 == TRIES or (status and 400 <= status < 500 and status != 429):
                    State.fail(f"the judge failed: {why}")
                _sleep(2.0**attempt)
        raise AssertionError


def not_understood(seconds: float) -> NoReturn:
    """In the place of time.sleep: only a retry of the judge waits, and the wire's retries are done in `Client`."""
    State.fail("the judge's answer could not be read")


def make_judge(given: dict[str, Any] | None) -> Any:
    """ClawEval's own judge at the endpoint `given`, or what stands for none."""
    if given is None:
        return NoJudge()
    from claw_eval.graders.llm_judge import LLMJudge
    from openai import OpenAI

    judge = LLMJudge(model_id=given["model"], api_key=given["key"] or "none", base_url=given["url"])
    judge.client = Client(
        OpenAI(api_key=given["key"] or "none", base_url=given["url"], max_retries=0, timeout=given["timeout_s"])
    )
    return judge


def grade(asked: dict[str, Any]) -> dict[str, float]:
    """The scores of a case."""
    from claw_eval.graders.registry import get_grader
    from claw_eval.models.task import TaskDefinition
    from claw_eval.models.trace import ToolDispatch
    from claw_eval.models.trace import TraceMessage

    tasks = Path(asked["checkout"], "tasks")
    folder = tasks / asked["task"]
    task = TaskDefinition.from_yaml(folder / "task.yaml")
    prompt = {"role": "user", "content": [{"type": "text", "text": task.prompt.text}]}
    messages = [TraceMessage(trace_id="t", message=message) for message in [prompt, *asked["messages"]]]
    dispatches = [
        ToolDispatch(trace_id="t", tool_use_id=str(number), **call) for number, call in enumerate(asked["dispatches"])
    ]
    snapshot = asked["snapshot"]
    for name in task.local_grader_files:
        content = base64.b64encode((folder / name).read_bytes()).decode()
        snapshot[f"local_file:{name}"] = {"encoding": "base64", "content": content}
    grader = get_grader(task.task_id, tasks_dir=tasks, task_dir=folder)
    given = {
        "audit_data": asked["audit"],
        "judge": make_judge(asked["judge"]),
        "media_events": [],
        "env_snapshot": snapshot,
    }
    wanted = inspect.signature(grader.grade).parameters
    scores = grader.grade(
        messages, dispatches, task, **{name: value for name, value in given.items() if name in wanted}
    )
    return {name: getattr(scores, name) for name in ("completion", "robustness", "communication", "safety")}


def main() -> None:
    """Grade one case."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # graders print
    asked = json.loads(sys.stdin.read())
    sys.path.insert(0, f"{asked['checkout']}/src")
    os.chdir(asked["checkout"])
    setattr(time, "sleep", not_understood)  # noqa: B010 - graders call it by this name
    try:
        said: dict[str, Any] = grade(asked)
    except NoVerdict:
        said = {}
    except Exception as error:
        said = {"trouble": f"{type(error).__name__}: {error}"[:500]}
    if State.trouble:
        said = {"trouble": State.trouble}
    json.dump(said, out)
    out.close()


if __name__ == "__main__":
    main()
