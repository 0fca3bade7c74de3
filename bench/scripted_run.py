"""Training runs in seconds: flow, Prefect, proxy and records are real; harness, engine and update are scripts.

A task's instruction says how long its rollouts take and which are right; the scripted harness takes that long, with
calls through the real proxy on the way. The update sleeps, makes the real rows of the epoch and counts what is stale.

    python -m bench.scripted_run '{"config": {...}, "train_s": 0.5}'     # in a process that can be killed
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import ExitStack
from contextlib import asynccontextmanager
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
from aiohttp import web

from flows.config import RunConfig
from flows.train import openforge
from proxy_addons import records
from proxy_addons.errors import ConfigError
from proxy_addons.packing import read_calls
from tasks.proxy import OwnProxy
from tasks.proxy import proxy_python
from tasks.proxy import running_proxy
from tasks.report import write_text
from tasks.run import ROOT
from tasks.run import RunFolder
from tasks.sandboxes import PROXY_URL
from tasks.sandboxes import Outcome
from tasks.sandboxes import Spec
from training.rows import build_rows

CALLS = 3
"""Model calls of a rollout: at its begin, at its end, and between."""
THINK_S, RELOAD_S = 0.01, 0.05


def write_task(folder: Path, name: str, seconds: Sequence[float], right: Sequence[bool], kind: str = "other") -> None:
    """A task whose rollout number n takes `seconds[n]` and is `right[n]`."""
    task = folder / name
    for part in ("environment", "tests"):
        (task / part).mkdir(parents=True)
    (task / "instruction.md").write_text(json.dumps({"seconds": list(seconds), "right": list(right)}))
    metadata = f'[metadata]\nsplit = "train"\nkind = "{kind}"\n[metadata.reward]\noutcome = "exact"\n'
    (task / "task.toml").write_text(metadata)
    (task / "tests" / "test.sh").write_text("exit 1\n")
    (task / "tests" / "expected.txt").write_text("yes\n")


class Harness:
    """A harness module whose program is `Sandbox.run` itself."""

    NAME = "scripted"
    SETTINGS = "bench/scripted_run.py"
    IMAGE_PATHS = ()

    def binary(self, root: Path) -> Path:
        return root

    def version(self, root: Path) -> str:
        return "1"

    def binds(self, root: Path) -> dict[str, Path]:
        return {}

    def prepare(self, home: Path, base_url: str, key: str, model: str) -> None:
        """It has no settings."""

    def command(self, instruction: str, base_url: str, key: str, model: str) -> tuple[str, ...]:
        return (instruction,)

    def env(self, base_url: str, key: str, model: str) -> Mapping[str, str]:
        return {"url": base_url, "key": key}

    def judge(self, outcome: Outcome) -> tuple[str, str]:
        return "completed", "done"


class Sandbox:
    """Does in this process what the task's instruction says."""

    name = "scripted"

    def not_enforced(self) -> list[str]:
        return []

    def reap(self, prefix: str) -> list[str]:
        return []

    async def run(self, spec: Spec) -> Outcome:
        assert spec.proxy and spec.rollout
        begun = time.monotonic()
        host, port = spec.proxy
        said = json.loads(spec.argv[0])
        url = spec.env["url"].replace(PROXY_URL, f"http://{host}:{port}") + "/v1/chat/completions"
        messages = [{"role": "user", "content": "go"}]
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {spec.env['key']}"}) as client:
            for number in range(CALLS):
                if number:
                    await asyncio.sleep(said["seconds"][spec.rollout.sample] / (CALLS - 1))
                async with client.post(url, json={"model": "m", "messages": messages}) as answer:
                    answer.raise_for_status()
                    messages.append((await answer.json())["choices"][0]["message"])
                messages.append({"role": "user", "content": "on"})
        (spec.workspace / "answer.txt").write_text("yes" if said["right"][spec.rollout.sample] else "no")
        return Outcome(0, "exited", "", time.monotonic() - begun, None, spec.log_dir / "out", spec.log_dir / "err")


class Policy:
    """A policy server, and the engine that it is, whose weights are a number; they do not change while it is asked."""

    def __init__(self, model: Path) -> None:
        tokenizer = json.loads((model / "tokenizer.json").read_text())
        end = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == "<|im_end|>")
        self._says = [tokenizer["model"]["vocab"]["o"], tokenizer["model"]["vocab"]["k"], end]
        self._asked = 0
        self.url = ""
        self.version = 0

    async def reload(self, folder: Path, version: int) -> None:
        """Serve the weights in `folder`, as `training.policy_server.PolicyServer` does."""
        assert (folder / "config.json").exists()
        for _ in range(5):
            assert not self._asked, "asked while its weights change"
            await asyncio.sleep(RELOAD_S / 5)
        self.version = version

    async def answer(self, _: web.Request) -> web.Response:
        """The engines' wire."""
        self._asked += 1
        version = self.version
        await asyncio.sleep(THINK_S)
        self._asked -= 1
        choice = {
            "token_ids": self._says,
            "finish_reason": "stop",
            "logprobs": {"content": [{"token_id": token, "logprob": -0.25} for token in self._says]},
            "weight_versions": [{"version": version, "start": 0, "end": len(self._says)}],
        }
        return web.json_response({"choices": [choice], "usage": {"completion_tokens": len(self._says)}})


@asynccontextmanager
async def serve(
    config: Any, base: Path, run: RunFolder, stand_in: Any, trainer: Any
) -> AsyncIterator[tuple[list[Policy], OwnProxy]]:
    """In the place of `flows.train._serving`: the real proxy, in front of a scripted engine."""
    policy = Policy(base)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/inference/v1/generate", policy.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    policy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with running_proxy(proxy_python(ROOT), [policy.url], base, run.path / "logs" / "proxy.log") as proxy:
            yield [policy], proxy
    finally:
        await runner.cleanup()


@dataclass(frozen=True)
class Update:
    """In the place of `tasks.update.train`. `skips` are epochs that train nothing; `fails` is one that fails."""

    train_s: float = 0.3
    skips: tuple[int, ...] = ()
    fails: int | None = None

    async def __call__(
        self, run: RunFolder, base: Path, epoch: int, seed: int, given: dict[str, Any], trainer: Any = None
    ) -> dict[str, Any]:
        began = time.time()
        await asyncio.sleep(self.train_s)
        if epoch == self.fails:
            raise ConfigError(f"training: epoch {epoch} was to fail; make it not")
        rollouts = records.read(str(run.epoch(epoch) / "rollouts.parquet"), records.ROLLOUTS)
        voting = [row for row in rollouts if row["reward"] is not None and row["complete"]]
        _, version = run.weights(epoch - 1, base)
        rows, report = build_rows(
            [call for row in voting for call in read_calls(row["calls_path"])],
            max_row_tokens=given["max_row_tokens"],
            weight_version=version,
            max_staleness=given["max_staleness"],
        )
        folder = run.path / "checkpoints" / f"epoch-{epoch:04}" / "hf"
        if epoch not in self.skips:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text((base / "config.json").read_text())
        result: dict[str, Any] = {
            "epoch": epoch,
            "skipped": epoch in self.skips,
            "weight_version": version,
            "rows": len(rows),
            "rollouts": len(voting),
            "trained_tokens": report.trained_tokens,
            "refused": dict(report.refused),
            "groups": {"dropped": {}},
            "behind": dict(Counter(version - row.weight_version for row in rows)),
            "versions_in_a_row": max(len(set(row.versions)) for row in rows),
            "time": (began, time.time()),
            "hf_path": None if epoch in self.skips else str(folder),
            "checkpoint": str(folder.parent),
        }
        write_text(run.epoch(epoch) / "train.json", json.dumps(result))
        return {"rows": len(rows)}


@contextmanager
def scripted(update: Update) -> Iterator[None]:
    """The flow `openforge` with scripts in the place of harness, sandbox, engine and update, for the block."""

    async def unmeasured(*given: Any) -> None:
        """A script cannot be trained from, and says so."""

    with ExitStack() as stack:
        for name, stand_in in {
            "choose": lambda *given: Sandbox(),
            "harnesses.load": lambda name: Harness(),
            "_serving": serve,
            "check_engines": unmeasured,
            "train": update,
        }.items():
            stack.enter_context(patch(f"flows.train.{name}", stand_in))
        yield


async def run(config: Mapping[str, Any], update: Update) -> Path:
    """One run of the flow; its folder."""
    quiet = {"evaluate_first": False, "evaluate_last": False, "heldout_tasks": 0, "harnesses": ["codex"]}
    with scripted(update):
        return Path(await openforge(RunConfig.model_validate({**quiet, **config}))).parent


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    asyncio.run(run(given["config"], Update(given["train_s"])))
