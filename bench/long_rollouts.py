"""Real harnesses that make many calls, as data for `bench.train`: Claude Code and Codex in their sandboxes, through the
proxy, with a script as their policy that looks around in the shell."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from transformers import AutoTokenizer

from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.conversation import ToolCall
from proxy_addons.identity import Rollout
from proxy_addons.live import Limits
from tasks import builtin
from tasks import harnesses
from tasks import taskset
from tasks.proxy import proxy_python
from tasks.proxy import running_proxy
from tasks.rollout import Arena
from tasks.rollout import Slot
from tasks.rollout import fill
from tasks.run import ROOT
from tasks.sandboxes import choose
from tasks.slots import Slots
from tasks.stand_in import running
from tasks.teacher import shell_call
from tasks.teacher_server import app

HARNESSES = ("claude_code", "codex")
COMMANDS = (
    "pwd && ls -la",
    "find . -type f | head -20",
    "cat $(find . -type f | head -1)",
    "grep -rn a . | head -15",
    "mkdir -p src && seq 1 120 > src/numbers.txt && wc -l src/numbers.txt",
    "head -40 src/numbers.txt",
    "awk '{s+=$1} END {print s}' src/numbers.txt",
    "printf 'def total(path):\\n    return sum(map(int, open(path)))\\n' > src/total.py && cat src/total.py",
    "grep -n def src/total.py",
    "sed -i 's/total/the_sum/' src/total.py && cat src/total.py",
    "cat nothing.txt",
    "ls -la src && du -a src",
    "tail -30 src/numbers.txt",
    "sort -rn src/numbers.txt | head -30",
    "echo done > answer.txt && cat answer.txt",
)


def look_around(messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
    """The next of the commands, then the end; one answer for a call without tools (a title, a quota check)."""
    done = sum(message.role == "assistant" for message in messages)
    if not tools or done >= len(COMMANDS):
        return Message("assistant", "Done.")
    name, arguments = shell_call(tools, COMMANDS[done])
    return Message("assistant", f"Step {done + 1}.", tool_calls=(ToolCall(f"call_{done}", name, arguments),))


async def record(model: Path, folder: Path, each: int) -> list[dict[str, Any]]:
    """`each` rollouts in each harness; their rows of `records.ROLLOUTS`."""
    builtin.generate(folder / "tasks", 1, each, 0)
    slots = [
        Slot(Rollout("bench", 1, task.id, number), task, harnesses.load(name), "train")
        for task in taskset.load(folder / "tasks")
        for number, name in enumerate(HARNESSES)
    ]
    async with _arena(model, folder) as arena:
        return list(await asyncio.gather(*(fill(slot, arena) for slot in slots)))


@asynccontextmanager
async def _arena(model: Path, folder: Path) -> AsyncIterator[Arena]:
    argv = [sys.executable, "-m", "bench.long_rollouts"]
    async with (
        running(argv, model, folder / "policy.log") as engine,
        running_proxy(proxy_python(ROOT), [engine], model, folder / "proxy.log") as proxy,
    ):
        yield Arena(
            proxy=proxy,
            sandbox=choose("auto"),
            harness_root=ROOT / harnesses.INSTALL,
            folder=folder / "stage",
            scratch=folder / "scratch",
            limits=Limits(max_calls=40, max_model_len=1 << 17),
            memory_mb=2048,
            cpus=1.0,
            pids=256,
            timeout_s=240.0,
            tries=2,
            slots=Slots(2),
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.long_rollouts")
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(given.model, local_files_only=True)
    web.run_app(app(tokenizer, look_around), host="127.0.0.1", port=given.port, print=None, access_log=None)
