"""O64: a rollout task that failed is not served again as a result, and one that is done is not run again because its
code changed. A real Prefect server keeps the results; what a try comes to is made up."""

import asyncio
import importlib.util
import inspect
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from prefect import flow

import flows.train
from tasks import rollout as tries
from tasks.rollout import Arena
from tasks.rollout import Rollout
from tasks.rollout import Slot
from tests.support.stage import groups_of
from tests.support.stage import session_in
from tests.support.stage import solved

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("prefect_server")]


def with_another_comment(tmp_path: Path) -> ModuleType:
    """`flows.train` as it is after somebody edited a comment in the task."""
    source = inspect.getsource(flows.train)
    before = "return await run_group(by_name[group], arena, deadline_s)"
    assert source.count(before) == 1
    file = tmp_path / "edited.py"
    file.write_text(source.replace(before, f"# so that it is clear\n        {before}"))
    spec = importlib.util.spec_from_file_location("flows.train_edited", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_o64_what_failed_runs_again_and_what_is_done_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: Counter[str] = Counter()
    ran: Counter[str] = Counter()
    other_done = asyncio.Event()

    async def first_one_crashes(slot: Slot, rollout: Rollout, arena: Arena, *_: Any) -> tuple[dict[str, Any], None]:
        tried[rollout.id] += 1
        if rollout.task == "t1" and rollout.sample == 2 and tried[rollout.id] == 1:
            # The first error ends all that runs: it comes when the other group is done and kept.
            await other_done.wait()
            await asyncio.sleep(1.0)
            raise RuntimeError("the controller stumbled")
        return await solved(slot, rollout, arena), None

    async def run_stage(module: ModuleType) -> None:
        group_is_run = module.run_group

        async def counted(group: Any, *more: Any) -> Any:
            ran[group[0].group] += 1
            rows = await group_is_run(group, *more)
            if group[0].group == "r-e001-t0":
                other_done.set()
            return rows

        @flow
        async def stage() -> None:
            session = session_in(tmp_path)
            await module.run_stage(session, tmp_path / "epoch-001", groups_of(2, 4), "rollout", 1)

        with monkeypatch.context() as patch:
            patch.setattr(tries, "_try", first_one_crashes)
            patch.setattr(module, "run_group", counted)
            await stage()

    with pytest.raises(RuntimeError, match="the controller stumbled"):
        await run_stage(flows.train)
    done = {file.stem for file in (tmp_path / "epoch-001" / "rollouts").glob("*.parquet")}
    assert "r-e001-t1-s02-t0" not in done and len(done) >= 4
    await run_stage(flows.train)
    assert ran["r-e001-t1"] == 2, "the failure was taken for a result"
    await run_stage(with_another_comment(tmp_path))
    assert len(tried) == 8
    assert ran == {"r-e001-t0": 1, "r-e001-t1": 2}, "a group that is done was run again"
    assert [name for name in done if tried[name] != 1] == []
