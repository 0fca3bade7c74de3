"""Runs a ClawEval task's own grader, in a process of its own, on what a rollout left.

A judge that is missing or fails is no verdict. ClawEval's own code retries it thirty times and then goes on with 0,
and many of its graders count 0 where there is no judge; the child (`child`) ends at the first sign of either.
"""

import asyncio
import json
import math
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proxy_addons.errors import VerifierError
from tasks.adapters.claweval.services import AUDIT
from tasks.adapters.claweval.services import DISPATCHES
from tasks.adapters.claweval.services import python
from tasks.adapters.judge import endpoint
from tasks.provider import Provider

PARTS = ("completion", "robustness", "communication", "safety")
_CHILD = Path(__file__).with_name("child.py")
_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}


async def grade(
    checkout: Path,
    task: str,
    folder: Path,
    messages: Sequence[Mapping[str, Any]],
    left: bytes | None,
    timeout_s: float,
    judge: Provider | None = None,
) -> dict[str, float]:
    """The grader's scores (`PARTS`), each 0..1; `judge` is whom it may ask. Raises VerifierError if it gave none."""
    if left is None:
        raise VerifierError("test.sh took no snapshot of the workspace")
    try:
        snapshot = json.loads(left)
    except ValueError:
        raise VerifierError("the snapshot of the workspace is not JSON") from None
    asked = {
        "checkout": str(checkout),
        "task": task,
        "messages": trace(messages),
        "dispatches": json.loads((folder / DISPATCHES).read_text()),
        "audit": json.loads((folder / AUDIT).read_text()),
        "snapshot": snapshot,
        "judge": endpoint(judge) if judge else None,
    }
    said = await _run(checkout, json.dumps(asked).encode(), timeout_s)
    if "trouble" in said:
        raise VerifierError(f"the grader of {task} gave no verdict: {said['trouble']}")
    return {name: _part(name, said.get(name)) for name in PARTS}


async def _run(checkout: Path, asked: bytes, timeout_s: float) -> dict[str, Any]:
    child = await asyncio.create_subprocess_exec(
        *(python(checkout), str(_CHILD)), stdin=PIPE, stdout=PIPE, stderr=PIPE, env=_ENV, start_new_session=True
    )
    try:
        out, err = await asyncio.wait_for(child.communicate(asked), timeout_s)
    except TimeoutError:
        raise VerifierError(f"the grader did not come to an end in {timeout_s:g} s and was killed") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    try:
        said = json.loads(out)
        if not isinstance(said, dict):
            raise ValueError
    except ValueError:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        raise VerifierError(f"the grader failed (exit {child.returncode}); it said: {last[0][:300]}") from None
    return said


def _part(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and 0 <= value <= 1):
        raise VerifierError(f"the grader's {name} is {str(value)[:40]}, not a number from 0 to 1")
    return float(value)


def trace(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A recorded conversation as ClawEval's messages, from the first assistant turn on.

    What the harness itself said to the policy (its system prompt, reminders) is left out; the child puts the task's own
    prompt first.
    """
    found: list[dict[str, Any]] = []
    for message in messages:
        text = [{"type": "text", "text": message["content"]}] if message.get("content") else []
        if message["role"] == "assistant":
            calls = [
                {"type": "tool_use", "id": call["id"], "name": call["name"], "input": _arguments(call["arguments"])}
                for call in message.get("tool_calls", ())
            ]
            found.append({"role": "assistant", "content": [*text, *calls]})
        elif message["role"] == "tool":
            result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id") or "", "content": text}
            found.append({"role": "user", "content": [result]})
    return found


def _arguments(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"input": value}
