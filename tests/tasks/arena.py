"""Everything that a rollout needs, for real, with the scripted teacher or any engine as the policy."""

import re
from collections.abc import AsyncIterator
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import cast

from aiohttp import web
from transformers import AutoTokenizer
from transformers import PreTrainedTokenizerBase

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
from tasks.slots import Slots
from tasks.teacher import teacher_turn
from tasks.teacher_server import app
from tests.support.toy_model import SPECIAL
from tests.support.toy_model import make_toy_model


@dataclass
class Teacher:
    """The teacher, whose server answers 500 for the first `failures` calls.

    `served` are the (prompt ids, sampled ids) of its answers.
    """

    failures: int = 0
    asked: int = 0
    served: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def turn(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        self.asked += 1
        if self.asked <= self.failures:
            raise RuntimeError("unwell")
        return teacher_turn(messages, tools)


class Speller:
    """A tokenizer that writes every character as a token of its own, as a sampler may and no encoder does: ids that
    the proxy or a row had made again from text would differ."""

    def __init__(self, model: Path, teacher: Teacher) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(str(model))
        self._teacher = teacher
        self._prompt: list[int] = []

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        self._prompt = ids
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Called right after `decode` of the prompt that is answered."""
        special = "|".join(re.escape(token) for token in SPECIAL)
        ids = [token for piece in re.findall(f"{special}|.", text, re.S) for token in self._tokenizer.encode(piece)]
        assert self._tokenizer.decode(ids) == text
        self._teacher.served.append((self._prompt, ids))
        return ids


@asynccontextmanager
async def arena(
    folder: Path, teacher: Teacher, max_model_len: int = 16_384, timeout_s: float = 60.0
) -> AsyncIterator[Arena]:
    model = make_toy_model(folder / "model")
    server = app(cast(PreTrainedTokenizerBase, Speller(model, teacher)), teacher.turn)
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
            slots=Slots(2),
        )


def slot(task: taskset.Task, harness: Any = None) -> Slot:
    return Slot(Rollout("test", 1, task.id, 0), task, harness or harnesses.load("claude_code"), "train")
