"""O66: a controller that dies with part of a group done leaves that part done: the rest runs, under the same ids, and
siblings are not mixed up. Real sandboxes, proxy and verdicts; the harness is five lines of Python."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from proxy_addons import records
from proxy_addons.identity import Rollout
from tasks import harnesses
from tasks.epoch import Group
from tasks.epoch import merge
from tasks.epoch import run_group
from tasks.rollout import Arena
from tasks.rollout import Slot
from tasks.run import ROOT
from tasks.sandboxes import Outcome
from tasks.taskset import Task
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from tests.support.toy_model import make_toy_model
from tests.tasks.arena import arena_of
from training.advantages import group_advantages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

DONE, WANTED = 5, 8


class Brief:
    """Asks the model once and leaves its sample's number as the answer. From sample `hang_from` on it never ends."""

    NAME = "brief"

    def __init__(self, hang_from: int) -> None:
        self._hang_from = hang_from

    def __getattr__(self, name: str) -> Any:
        return getattr(harnesses.load("claude_code"), name)

    def version(self, root: Path) -> str:
        return "1"

    def binds(self, root: Path) -> dict[str, Path]:
        return {}

    def command(self, instruction: str, base_url: str, key: str, model: str) -> tuple[str, ...]:
        sample = int(base_url.split("-s")[-1].split("-")[0])
        lines = (
            "import json, time, urllib.request as r",
            "body = json.dumps({'model': 'm', 'max_tokens': 9, 'messages': [{'role': 'user', 'content': 'go'}]})",
            f"head = {{'x-api-key': {key!r}, 'content-type': 'application/json'}}",
            f"r.urlopen(r.Request({base_url + '/v1/messages'!r}, body.encode(), head)).read()",
            f"time.sleep({600 if sample >= self._hang_from else 0})",
            f"open('answer.txt', 'w').write('{sample / 10}')",
        )
        return ("/usr/bin/python3", "-c", "\n".join(lines))

    def judge(self, outcome: Outcome) -> tuple[str, str]:
        return ("completed" if outcome.exit_code == 0 else "failed"), outcome.stderr_path.read_text()[-500:]


def group_of(folder: Path, hang_from: int = WANTED) -> Group:
    (folder / "task" / "environment").mkdir(parents=True, exist_ok=True)
    (folder / "task" / "tests").mkdir(exist_ok=True)
    (folder / "task" / "tests" / "test.sh").write_text("cat answer.txt > $VERIFIER_REWARD_FILE\n")
    task = Task("t", "kind", "train", "go", folder / "task", 700.0, 30.0, "digest")
    harness: Any = Brief(hang_from)
    return [Slot(Rollout("o66", 1, "t", sample), task, harness, "train") for sample in range(WANTED)]


@asynccontextmanager
async def place_in(folder: Path) -> AsyncIterator[Arena]:
    model = make_toy_model(folder / "model")
    async with (
        serving(ScriptedEngine(lambda prompt, n: [72, 73, 2])) as engine,
        arena_of(engine.url, model, folder) as place,
    ):
        yield place


def whole(folder: Path) -> dict[str, Any]:
    """The rows that are on disk: reward by rollout."""
    files = [file for file in (folder / "stage" / "rollouts").glob("*.parquet") if records.is_whole(str(file))]
    rows = [records.read(str(file), records.ROLLOUTS)[0] for file in files]
    return {row["rollout"]: row["reward"] for row in rows}


async def doomed(folder: Path) -> None:
    async with place_in(folder) as place:
        await run_group(group_of(folder, hang_from=DONE), place)


async def test_o66_what_is_done_stays_done_and_the_rest_runs(tmp_path: Path) -> None:
    controller = subprocess.Popen([sys.executable, "-m", "tests.cases.test_o66_part_of_a_group", tmp_path], cwd=ROOT)
    deadline = time.monotonic() + 200
    while len(whole(tmp_path)) < DONE:
        assert controller.poll() is None and time.monotonic() < deadline
        await asyncio.sleep(0.1)
    children = psutil.Process(controller.pid).children(recursive=True)
    controller.kill()
    controller.wait()
    assert not psutil.wait_procs(children, timeout=20)[1]
    before = whole(tmp_path)
    ids = [f"o66-e001-t-s{sample:02}-t0" for sample in range(WANTED)]
    assert before == {name: sample / 10 for sample, name in enumerate(ids[:DONE])}

    async with place_in(tmp_path) as place:
        manifest = await run_group(group_of(tmp_path), place)
        rows = merge(place.folder, [group_of(tmp_path)], place.tries)
    assert (manifest["wanted"], manifest["ran"]) == (WANTED, WANTED - DONE)
    assert {row["rollout"]: row["reward"] for row in rows} == {name: n / 10 for n, name in enumerate(ids)}
    assert [row["started_at"] for row in rows] == sorted(row["started_at"] for row in rows)
    advantages, report = group_advantages(rows, ids)
    assert (len(advantages), report.sizes) == (WANTED, {"o66-e001-t": (WANTED, WANTED)})


if __name__ == "__main__":
    asyncio.run(doomed(Path(sys.argv[1])))
