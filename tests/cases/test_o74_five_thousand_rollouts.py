"""O74: five thousand rollouts in one step come to their end, a bounded number at a time, and what Prefect's server is
asked and told grows with the groups and not with the rollouts. A real server and real files; what a try comes to is
made up."""

from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.base import PrefectHttpxAsyncClient
from prefect.events.worker import EventsWorker

from flows.train import run_stage
from tasks import rollout as tries
from tasks.rollout import Arena
from tasks.rollout import Rollout
from tasks.rollout import Slot
from tests.support.stage import groups_of
from tests.support.stage import session_in
from tests.support.stage import solved

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("prefect_server")]

GROUPS, SIZE, SLOTS = 10, 500, 32


async def test_o74_bounded_and_the_servers_work_grows_with_the_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, running, most, tried = 0, 0, 0, 0
    ask, tell = PrefectHttpxAsyncClient.send, EventsWorker.send

    async def counted_ask(self: PrefectHttpxAsyncClient, *args: Any, **kwargs: Any) -> Any:
        nonlocal messages
        messages += 1
        return await ask(self, *args, **kwargs)

    def counted_tell(self: EventsWorker, event: Any) -> None:
        nonlocal messages
        messages += 1
        tell(self, event)

    async def counted_try(slot: Slot, rollout: Rollout, arena: Arena, *_: Any) -> tuple[dict[str, Any], None]:
        nonlocal running, most, tried
        tried += 1
        running += 1
        most = max(most, running)
        row = await solved(slot, rollout, arena)
        running -= 1
        return row, None

    monkeypatch.setattr(PrefectHttpxAsyncClient, "send", counted_ask)
    monkeypatch.setattr(EventsWorker, "send", counted_tell)
    monkeypatch.setattr(tries, "_try", counted_try)

    async def messages_for(size: int) -> int:
        @flow
        async def step() -> None:
            place = tmp_path / str(size)
            place.mkdir()
            await run_stage(session_in(place, SLOTS), place / "epoch-001", groups_of(GROUPS, size), "rollout", 1)

        before = messages
        await step()
        return messages - before

    few = await messages_for(2)
    many = await messages_for(SIZE)
    assert tried == GROUPS * (SIZE + 2)
    assert most == SLOTS
    assert few >= 2 * GROUPS  # each group's task starts and ends
    assert many < few + GROUPS * SIZE / 20
