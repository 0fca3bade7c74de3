"""O43: a watch that goes silent, is cut, or is told that its place is too old (410) loses no pod's end.

Each waits for a pod that ends while nobody tells: it is noticed by the list that follows, within the bound.
"""

import asyncio
import time
from pathlib import Path
from typing import Literal

import pytest

from tests.kube.faults import WatchEnd
from tests.kube.support import eventually
from tests.tasks.kube.support import backend
from tests.tasks.kube.support import delivers
from tests.tasks.kube.support import result
from tests.tasks.kube.support import spec

SILENCE_S = 0.5


@pytest.mark.parametrize("how", ["silent", "cut", "closed", "expired"])
async def test_o43_an_end_in_the_gap_is_noticed(
    how: Literal["silent", "cut", "closed", "expired"], tmp_path: Path
) -> None:
    # Exit 3: only the pod's own status, which comes by the watch, settles it.
    async with backend(delivers(3, after=0.3, body=result("3")), silence_s=SILENCE_S) as (c, sandbox):
        running = asyncio.create_task(sandbox.run(spec(tmp_path)))
        await eventually(lambda: c.objects.all("pods", "openforge"))
        c.watches.end(how)
        start = time.monotonic()
        outcome = await asyncio.wait_for(running, 10)
        took = time.monotonic() - start
    assert (outcome.reason, outcome.exit_code) == ("exited", 3)
    assert took < 5


async def test_o43_two_events_then_silence_then_410_then_closed(tmp_path: Path) -> None:
    async with backend(delivers(3, after=0.3, body=result("3")), silence_s=SILENCE_S) as (c, sandbox):
        c.faults.watches += [
            WatchEnd(2, "silent", "/pods"),
            WatchEnd(0, "expired", "/pods"),
            WatchEnd(1, "closed", "/pods"),
        ]
        c.watches.end("closed")
        outcomes = [await asyncio.wait_for(sandbox.run(spec(tmp_path, sample=n)), 15) for n in range(3)]
        await eventually(lambda: not c.faults.watches)
    assert [outcome.exit_code for outcome in outcomes] == [3, 3, 3]


async def test_o43_a_list_that_fails_is_asked_again(tmp_path: Path) -> None:
    async with backend(delivers(3, body=result("3")), silence_s=SILENCE_S) as (c, sandbox):
        c.faults.answer("GET", "/pods", 500, times=3)
        c.watches.end("expired")
        outcome = await asyncio.wait_for(sandbox.run(spec(tmp_path)), 20)
    assert outcome.exit_code == 3


async def test_o43_watches_and_memory_do_not_grow_with_the_rollouts(tmp_path: Path) -> None:
    async with backend(delivers(after=1.0)) as (c, sandbox):
        running = [asyncio.create_task(sandbox.run(spec(tmp_path, sample=n))) for n in range(30)]
        await eventually(lambda: len(c.objects.all("pods", "openforge")) == 30)
        await eventually(lambda: len(c.watches) == 2)
        await asyncio.gather(*running)
        assert sandbox._opened and not sandbox._opened.watch._seen
        assert c.requests["watch", "pods"] <= 2
