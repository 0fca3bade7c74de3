"""O65: what a dead worker left half-written is owed again, and neither the check nor the run stumbles over it."""

from pathlib import Path

import pytest

from proxy_addons import records
from proxy_addons.identity import Rollout
from proxy_addons.packing import pack
from proxy_addons.packing import read_calls
from tasks import harnesses
from tasks.epoch import merge
from tasks.epoch import owed
from tasks.rollout import Slot
from tasks.rollout import calls_path
from tasks.rollout import row_path
from tasks.taskset import Task

TASK = Task("t", "kind", "train", "do it", Path("/none"), 1.0, 1.0, "digest")
GROUP = [Slot(Rollout("r", 1, "t", sample), TASK, harnesses.load("codex"), "train") for sample in range(5)]
GOOD, NO_FOOTER, EMPTY, ONLY_TEMPORARY, TORN_CALLS = GROUP


def write(folder: Path, slot: Slot) -> bytes:
    """Both files of a finished rollout; returns those of its row."""
    row = {"rollout": slot.rollout.id, "reward": 1.0, "findings": []}
    calls = [{"rollout": slot.rollout.id, "call": 0, "sampled_ids": [slot.rollout.sample], "findings": []}]
    records.write(str(row_path(folder, slot.rollout)), records.table([row], records.ROLLOUTS))
    records.write(str(calls_path(folder, slot.rollout)), records.table(calls, records.CALLS))
    return row_path(folder, slot.rollout).read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for slot in GROUP:
        whole = write(tmp_path, slot)
    row_path(tmp_path, NO_FOOTER.rollout).write_bytes(whole[:-8])
    row_path(tmp_path, EMPTY.rollout).write_bytes(b"")
    path = row_path(tmp_path, ONLY_TEMPORARY.rollout)
    path.rename(path.with_name(f".{path.name}.0.tmp"))
    calls_path(tmp_path, TORN_CALLS.rollout).write_bytes(b"PAR1")
    return tmp_path


def test_o65_the_good_one_is_kept_and_the_others_are_redone(folder: Path) -> None:
    assert owed(folder, GROUP, 1) == [NO_FOOTER, EMPTY, ONLY_TEMPORARY, TORN_CALLS]
    for slot in owed(folder, GROUP, 1):
        write(folder, slot)
    assert owed(folder, GROUP, 1) == []
    assert [row["reward"] for row in merge(folder, [GROUP], 1)] == [1.0] * 5


def test_o65_packed_calls_are_not_owed(folder: Path) -> None:
    still = [NO_FOOTER, EMPTY, ONLY_TEMPORARY, TORN_CALLS]
    assert pack(str(folder / "calls")) == 4
    assert not calls_path(folder, GOOD.rollout).exists()
    assert owed(folder, GROUP, 1) == still
    assert read_calls(str(calls_path(folder, GOOD.rollout)), ["sampled_ids"]) == [{"sampled_ids": [0]}]
