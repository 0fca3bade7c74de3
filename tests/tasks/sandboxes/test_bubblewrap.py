"""What only bubblewrap does: it says what it cannot hold, and keeps the key out of the process list."""

import asyncio
from pathlib import Path

import psutil

from tests.tasks.boxes import here
from tests.tasks.boxes import spec


def test_says_what_it_cannot_hold() -> None:
    assert {"memory", "cpus"} < set(here("bubblewrap").not_enforced())


async def test_environment_is_not_on_the_command_line(tmp_path: Path) -> None:
    given = spec(tmp_path, "sleep 98767", env={"KEY": "of-test-key"})
    task = asyncio.create_task(here("bubblewrap").run(given))
    lines: list[str] = []
    while not any("98767" in line for line in lines):
        await asyncio.sleep(0.05)
        lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not any("of-test-key" in line for line in lines)
