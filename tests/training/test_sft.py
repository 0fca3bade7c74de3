"""What a warm start refuses, and the order in which it reads rows."""

from itertools import islice
from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from training.job import SftSettings
from training.rows import Row
from training.sft import batches
from training.sft import fit
from training.sft import shared_openings
from training.sft import without_opening


def test_without_a_row_nothing_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="warm start: no row to train on"):
        fit([], tmp_path, tmp_path / "out", SftSettings(), seed=0)


def rows_of(count: int) -> list[Row]:
    return [Row(f"r{n}", "g", [1, 2, n], [0, 0, 1], [0.0, 0.0, -1.0], (0,), (0,)) for n in range(count)]


def test_every_round_has_every_row_once_in_its_own_order() -> None:
    rows = rows_of(7)
    parts = list(islice(batches(rows, 3, seed=5), 6))
    assert [len(part) for part in parts] == [3, 3, 1, 3, 3, 1]
    first, second = ([row.rollout for part in half for row in part] for half in (parts[:3], parts[3:]))
    assert sorted(first) == sorted(second) == [row.rollout for row in rows]
    assert first != second
    assert parts == list(islice(batches(rows, 3, seed=5), 6))


def test_the_opening_is_what_the_rows_of_a_harness_share_and_never_a_trained_token() -> None:
    rows = rows_of(4)
    openings = shared_openings(rows, {"r0": "a", "r1": "a", "r2": "b", "r3": "b"})
    assert openings == dict.fromkeys(("r0", "r1", "r2", "r3"), 1)
    short = without_opening(rows[3], openings["r3"])
    assert (short.ids, short.mask, short.logprobs) == ([2, 3], [0, 1], [0.0, -1.0])
