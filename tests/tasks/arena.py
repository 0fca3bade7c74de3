"""Everything that a rollout needs, for real, with the scripted teacher or any engine as the policy."""

import asyncio
from collections.abc import AsyncIterator
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web
from transformers import AutoTokenizer

from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from proxy_addons.identity import Rollout
from proxy_addons.live import Limits
from tasks import harnesses
from tasks import taskset
from tasks.proxy import proxy_python
from tasks.proxy import running_proxy
from tasks.rollout import Arena
from tasks.rollout import Slot
from tasks.run import ROOT
from tasks.sandboxes import choose
from tasks.teacher import teacher_turn
from tasks.teacher_server import app
from tests.support.toy_model import make_toy_model


@dataclass
class Teacher:
    """The teacher, whose server answers 500 for the first `failures` calls."""

    failures: int = 0
    asked: int = 0

    def turn(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        self.asked += 1
        if self.asked <= self.failures:
            raise RuntimeError("unwell")
        return teacher_turn(messages, tools)


@asynccontextmanager
async def arena(
    folder: Path, teacher: Teacher, max_model_len: int = 16_384, timeout_s: float = 60.0
) -> AsyncIterator[Arena]:
    model = make_toy_model(folder / "model")
    server = app(AutoTokenizer.from_pretrained(str(model)), teacher.turn)
    runner = web.AppRunner(server)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with arena_of(f"http://127.0.0.1:{runner.addresses[0][1]}", model, folder) as place:
            limits = replace(place.limits, max_model_len=max_model_len)
            yield replace(place, limits=limits, timeout_s=timeout_s)
    finally:
        await runner.cleanup()


@asynccontextmanager
async def arena_of(engine: str, model: Path, folder: Path) -> AsyncIterator[Arena]:
    async with running_proxy(proxy_python(ROOT), [engine], model, folder / "proxy.log") as proxy:
        yield Arena(
            proxy=proxy,
            sandbox=choose("auto"),
            harness_root=ROOT / harnesses.INSTALL,
            folder=folder / "stage",
            scratch=folder / "scratch",
            limits=Limits(max_model_len=8192),
            memory_mb=2048,
            cpus=1.0,
            pids=256,
            timeout_s=60.0,
            tries=2,
            slots=asyncio.Semaphore(2),
        )


def slot(task: taskset.Task, harness: Any = None) -> Slot:
    return Slot(Rollout("test", 1, task.id, 0), task, harness or harnesses.load("claude_code"), "train")
